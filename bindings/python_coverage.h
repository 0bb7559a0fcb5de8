// The account of a run as a Python object, and its verdicts.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_coverage(pybind11::module_& module);

}  // namespace op_tools::python
