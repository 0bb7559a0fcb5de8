// Tells the core in which torch.nn.Module the user's program is (hooks/module_path.h), by the frames of the Python
// stack: no hook on modules, which torch.compile would meet, and nothing to keep right when an exception passes.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "base/host.h"

namespace op_tools::python {

// Host::place(), Host::named_tensors().
Place place_in_python(bool line, bool module);
void named_tensors_in_python(uint64_t recording, std::vector<NamedTensor>* named);

void bind_modules(pybind11::module_& module);

}  // namespace op_tools::python
