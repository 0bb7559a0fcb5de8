#include "error_text.h"

#include "interrupts.h"

namespace op_tools::python {

std::string text_of_error(const py::error_already_set& error) {
  if (const auto text = py::reinterpret_steal<py::object>(PyObject_Str(error.value().ptr()))) return error.what();
  PyErr_Clear();
  return reinterpret_cast<const PyTypeObject*>(error.type().ptr())->tp_name;
}

}  // namespace op_tools::python
