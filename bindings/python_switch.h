// A tool of the Python package, on or off, and the scope of its run.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_switch(pybind11::module_& module);

}  // namespace op_tools::python
