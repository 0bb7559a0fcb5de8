// Objects that are more than plain values (op_tools/_torch/object_forms.py): dataclasses, named tuples, arrays of
// numpy. In Value trees and files a dataclass or an array is a Dict with a single tagged entry. Everything here needs
// the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>

namespace op_tools::python {

namespace py = pybind11;

// May the object have tensors that are no items of it? Cheap: asked for each argument of a call.
bool is_dataclass(PyObject* object);

// Its form in a tree: a dict with a single entry, of plain values; a str: why it has no form.
py::object form_of(py::handle object);

// Back from it. The dict itself where it stands for nothing.
py::object from_form(py::dict form);
py::object named_tuple(const std::string& type, const py::tuple& items);

}  // namespace op_tools::python
