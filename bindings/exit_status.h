// The exit status of a program whose tools have a verdict: the program's own comes first. Python's atexit does not know
// it, and ends before it is known; glibc's on_exit() is told.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void init_exit_status(pybind11::module_& module);

}  // namespace op_tools::python
