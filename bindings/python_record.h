// Recordings for Python: the program's facts about itself, and the rows of a file.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_record(pybind11::module_& module);

}  // namespace op_tools::python
