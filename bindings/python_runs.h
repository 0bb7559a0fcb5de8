// The comparison of recordings (src/runs) for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_runs(pybind11::module_& module);

}  // namespace op_tools::python
