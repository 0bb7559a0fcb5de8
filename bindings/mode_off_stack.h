// The innermost torch-function mode off its stack while a with statement runs, for op_tools/_torch/mode_stack.py. GIL
// held.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_mode_off_stack(pybind11::module_& module);

}  // namespace op_tools::python
