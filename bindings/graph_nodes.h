// The places of a compiled graph's nodes in the user's code, for op_tools/_torch/graph_operators.py, which runs the
// graph node by node. GIL held.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void bind_graph_nodes(pybind11::module_& module);

}  // namespace op_tools::python
