#include "new_threads.h"

#include <pybind11/pybind11.h>

#include "hooks/current_chain.h"
#include "interrupts.h"

namespace op_tools::python {
namespace {

PyObject* g_bootstrap = nullptr;  // threading.Thread._bootstrap: what a new thread calls first

PyObject* bootstrap(PyObject*, PyObject* thread) {
  thread_begins();
  return PyObject_CallOneArg(g_bootstrap, thread);
}

PyMethodDef kBootstrap = {"_bootstrap", &bootstrap, METH_O, "What a new thread calls first."};

// In C, so that no frame of ours is in the stacks of the program's threads. It stays when the tools are off: who else
// took its place meanwhile calls it.
bool watch_threads() {
  if (!Py_IsInitialized()) return false;
  const py::gil_scoped_acquire gil;
  if (g_bootstrap) return true;
  const py::error_scope restored;  // the program's own Python error may be set
  try {
    const py::object thread = py::module_::import("threading").attr("Thread");
    py::object original = thread.attr("_bootstrap");
    const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&kBootstrap, nullptr));
    const auto method = py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
    thread.attr("_bootstrap") = method;
    g_bootstrap = original.release().ptr();  // no thread begins in between: this one has the GIL
    return true;
  } catch (const py::error_already_set&) {  // a Python whose threads begin otherwise
    return false;
  }
}

}  // namespace

void init_thread_watch() {
  set_thread_watch(&watch_threads);
}

}  // namespace op_tools::python
