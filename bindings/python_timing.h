// Python's part of timing: torch's formulas for floating point operations, the module a call is made in.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_timing(pybind11::module_& module);

}  // namespace op_tools::python
