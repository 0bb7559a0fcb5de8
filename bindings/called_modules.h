// Calls of modules for the hooks that see them (Wants::modules). The package hands them over
// (op_tools/_torch/module_calls.py) while such a hook is on. GIL held.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_called_modules(pybind11::module_& module);

}  // namespace op_tools::python
