// Hooks written in Python: op_tools.Hook with before(call) and after(call, state); and conditions, functions of a call.
#pragma once

#include <pybind11/pybind11.h>

#include "hooks/conditional_hook.h"

namespace op_tools::python {

// Asks a Python function that takes a Call and gives a value that is true or false.
Condition python_condition(pybind11::object function);

void bind_hook(pybind11::module_& module);

}  // namespace op_tools::python
