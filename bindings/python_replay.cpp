#include "python_replay.h"

namespace op_tools::python {

void bind_replay(pybind11::module_&) {}

}  // namespace op_tools::python
