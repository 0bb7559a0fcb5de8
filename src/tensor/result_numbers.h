// The numbers that a call hands to the program in the place of tensors: item(), equal(), tolist().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "tensor/value.h"

namespace op_tools {

// As a tensor on the CPU: bool or int64 where all are, else of `dtype`, a floating-point type (of the tensors that were
// read). Without dimensions for a single number, else with one dimension, in their order. Undefined where the result
// has no numbers, or anything else beside them. Called under InternalGuard.
at::Tensor result_numbers(const Value& result, c10::ScalarType dtype);

}  // namespace op_tools
