// The tools, their options and the columns of their rows, for the Python package.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_tool_kinds(pybind11::module_& module);

}  // namespace op_tools::python
