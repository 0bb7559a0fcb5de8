// The replay engine for Python: the same flags, checks and report, plus calls that exist in Python only.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_replay(pybind11::module_& module);

}  // namespace op_tools::python
