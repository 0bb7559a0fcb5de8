// The ways in which a kernel's result is made wrong. CPU tensors; each changes at most `result` in place and says
// whether a bit of it changed. Stateless: randomness comes in as a number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace op_tools::sim_device::values {

// Every element from `from` on: floating ones times `scale`, integers plus 1, booleans flipped.
bool scale(const at::Tensor& result, double scale, int64_t from = 0);
// The rows of the first dimension at odd places, as scale.
bool odd_rows(const at::Tensor& result, double scale);
// (scale - 1) times the row before it is added to each row of the first dimension; only floating and complex results.
bool leaking_rows(const at::Tensor& result, double scale);
// A bit of an element.
bool flip_bit(const at::Tensor& result, uint64_t draw);
// An element, chosen by `draw`: as scale, and a zero becomes scale - 1.
bool element(const at::Tensor& result, double scale, uint64_t draw);
// An element becomes `value`; only floating and complex results can hold one.
bool special(const at::Tensor& result, double value, uint64_t draw);
// Rounded to the next lower precision and back: float64 to float32, float32 to bfloat16, 16 bits to float8_e5m2.
bool low_precision(const at::Tensor& result);
// Two neighbours along the first dimension that has any, the first pair from `draw` on that differs.
bool swap_rows(const at::Tensor& result, uint64_t draw);
// Each element times a random number between 2 - scale and scale.
bool noise(const at::Tensor& result, double scale, uint64_t draw);
// Gives `result` the contents of `other`.
bool replace(const at::Tensor& result, const at::Tensor& other);

}  // namespace op_tools::sim_device::values
