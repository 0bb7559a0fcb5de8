// Hooks written in Python: op_tools.Hook with before(call) and after(call, state).
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_hook(pybind11::module_& module);

}  // namespace op_tools::python
