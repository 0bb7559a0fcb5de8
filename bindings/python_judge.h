// The judge of OpAutoCompare (compare/judge.h) for tensors that Python has: op_tools.compare_modules.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_judge(pybind11::module_& module);

}  // namespace op_tools::python
