#include "interrupts.h"

#include <torch/csrc/Exceptions.h>

#include <exception>

#include "python_host.h"

namespace op_tools::python {
namespace {

// Of an exception that is an Exception: the rest is decided in Python (op_tools/_torch/interrupts.py).
bool arrived(py::handle exception) {
  if (!PyErr_GivenExceptionMatches(exception.ptr(), PyExc_Exception)) return true;
  // At the limit of recursion the test would raise another, about which the test would be asked again.
  if (PyErr_GivenExceptionMatches(exception.ptr(), PyExc_RecursionError)) return false;
  const auto trace = py::reinterpret_steal<py::object>(PyException_GetTraceback(exception.ptr()));
  const py::handle test = host_functions().is_from_outside;
  if (!trace || !test) return false;  // no Python code ran in it
  return to_its_end([&] { return test(exception).is(py::bool_(true)); });
}

bool arrived(const py::error_already_set& error) {
  // Python gives an exception its traceback when Python code catches it.
  if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  return arrived(py::handle(error.value()));
}

// torch's form of it, from code that the dispatcher or autograd called. It may still stand in the thread's error.
bool arrived(python_error& error) {
  error.persist();
  if (!error.type) return false;
  PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
  if (error.traceback) PyException_SetTraceback(error.value, error.traceback);
  return arrived(py::handle(error.value));
}

}  // namespace

bool is_of_program(const std::exception& caught) {
  const auto* const ours = dynamic_cast<const py::error_already_set*>(&caught);
  const auto* const torchs = dynamic_cast<const python_error*>(&caught);
  if ((!ours && !torchs) || !Py_IsInitialized()) return false;
  const py::gil_scoped_acquire gil;
  try {
    // The thrown object may be changed: no other code has it.
    return ours ? arrived(*ours) : arrived(const_cast<python_error&>(*torchs));
  } catch (const std::exception&) {
    return false;
  }
}

bool is_from_outside(const py::error_already_set& error) {
  return arrived(error);
}

void forget_error() {
  if (!PyErr_Occurred()) return;
  try {
    throw py::error_already_set();
  } catch (const py::error_already_set& error) {
    hold_for_program(error);
  }
}

void throw_held() {
  const std::exception_ptr held = take_held();
  if (!held) return;
  try {
    std::rethrow_exception(held);
  } catch (python_error& error) {  // pybind11 does not know it
    error.restore();
    throw py::error_already_set();
  }
}

}  // namespace op_tools::python
