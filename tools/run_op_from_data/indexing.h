// x[index] and x[index] = value, as Python spells them: the two calls that are no single operator.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/value.h"

namespace op_tools::replay {

// Throws Error for an index that has no form in C++.
at::Tensor get_item(const at::Tensor& self, const Value& index);
void set_item(const at::Tensor& self, const Value& index, const Value& value);

}  // namespace op_tools::replay
