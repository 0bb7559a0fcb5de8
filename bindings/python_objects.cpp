#include "python_objects.h"

#include "interrupts.h"
#include "python_values.h"

namespace op_tools::python {
namespace {

py::object function_of_package(const char* name) {
  return py::module_::import("op_tools._torch.object_forms").attr(name);
}

}  // namespace

bool is_dataclass(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  // Numbers, strings, dtypes: classes written in C.
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
  static PyObject* const fields = PyUnicode_InternFromString("__dataclass_fields__");
  const auto attribute = py::reinterpret_steal<py::object>(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), fields));
  if (!attribute) forget_error();
  return static_cast<bool>(attribute);
}

py::object form_of(py::handle object) {
  py::object form = function_of_package("form_of")(object);
  if (!py::isinstance<py::tuple>(form)) return form;
  py::dict tagged;
  tagged[form[py::int_(0)]] = form[py::int_(1)];
  return tagged;
}

py::object from_form(py::dict form) {
  if (form.size() != 1) return form;
  const auto [key, content] = *form.begin();
  if (!PyUnicode_Check(key.ptr())) return form;
  const auto tag = py::str(key);
  if (!shown_text(tag).starts_with("__")) return form;
  py::object object = function_of_package("from_form")(tag, content);
  return object.ptr() == Py_NotImplemented ? form : object;
}

py::object named_tuple(const std::string& type, const py::tuple& items) {
  return function_of_package("named_tuple")(type, items);
}

}  // namespace op_tools::python
