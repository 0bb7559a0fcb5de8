// Tells the core in which torch.nn.Module the user's program is (hooks/module_path.h), by the frames of the Python
// stack: no hook on modules, which torch.compile would meet, and nothing to keep right when an exception passes.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

// set_module_namer(name): name(modules, outermost first) -> path, asked once for each such stack of modules.
void bind_modules(pybind11::module_& module);

}  // namespace op_tools::python
