// What tools there are, what they can be set to and what their rows hold, for the Python package.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_tool_kinds(pybind11::module_& module);

}  // namespace op_tools::python
