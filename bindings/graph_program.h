// op_tools._sim.GraphProgram, for op_tools/sim_graph. GIL held; running a program lets other threads run.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_graph_program(pybind11::module_& module);

}  // namespace op_tools::python
