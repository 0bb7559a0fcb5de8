// Python as the core's host (base/host.h), and the functions of the Python package that answer for it.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

// As op_tools/_torch/host.py gives them. Never freed: the core asks until the process ends.
struct HostFunctions {
  pybind11::handle is_from_outside;  // (exception) -> bool
  pybind11::handle module_path;      // (modules, outermost first) -> str, once for each such stack of modules
  pybind11::handle named_tensors;    // (model, args, kwargs, recording) -> [(name, origin, tensor)]; three times None
                                     // where no model runs
  pybind11::handle program_facts;    // () -> dict
  pybind11::handle program_start;    // () -> dict
  pybind11::handle count_flops;      // (name, is_backward, args, kwargs) -> int
  pybind11::handle advice;           // (item, level) -> str
  pybind11::handle gathers_collectives;  // () -> bool
  pybind11::handle packs_saved_tensors;  // () -> bool
};
const HostFunctions& host_functions();  // null until the package is imported

// install_host(**functions): makes Python the core's host.
void bind_host(pybind11::module_& module);

}  // namespace op_tools::python
