// A program's own noise: a tensor changed by the least that its dtype can express.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace op_tools {

// Can its elements be changed so? Real floating-point numbers of 16 bits or more, with memory.
bool can_jitter(const at::Tensor& tensor);
// Each element up or down by a unit in the last place, as the seed says. Zeros, nonfinite numbers and the numbers at
// both ends of the dtype stay. No version counter moves: for autograd nothing was written. Under InternalGuard.
void jitter(const at::Tensor& tensor, int64_t seed);

}  // namespace op_tools
