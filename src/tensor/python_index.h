// x[index] and x[index] = value, as Python spells them: the two calls that are no single operator.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

// Throws Error for an index that has no form in C++.
OP_TOOLS_API at::Tensor get_item(const at::Tensor& self, const Value& index);
OP_TOOLS_API void set_item(const at::Tensor& self, const Value& index, const Value& value);

}  // namespace op_tools
