// torch.tensor(data, dtype=..., device=..., requires_grad=...): Python's tensor of numbers in lists.
#pragma once

#include <ATen/core/Tensor.h>

#include "run_op_from_data/python_names.h"
#include "tensor/value.h"

namespace op_tools::replay {

// Throws Error that says why for data or arguments that it has no form for (tensors inside of lists, pinned memory),
// and for lists of different lengths.
at::Tensor made_tensor(const Values& args, const Keywords& keywords);

}  // namespace op_tools::replay
