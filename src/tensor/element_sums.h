// The results of one pass over a CPU tensor: the parts of its statistics (statistics.h). Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <limits>

#include "tensor/sign_pattern.h"

namespace op_tools {

struct ElementSums {
  double min = std::numeric_limits<double>::infinity(), max = -min;  // of elements that are no NaN; complex: of |x|
  double sum = 0, squares = 0;
  std::array<double, sign_pattern::kProjections> projections{};  // of numbers up to kMost
  int64_t nan = 0, inf = 0, zero = 0;
  // Of 64-bit integers, which float64 has not all of. Unsigned ones keep their order: their highest bit is turned.
  int64_t exact_min = std::numeric_limits<int64_t>::max(), exact_max = std::numeric_limits<int64_t>::min();
  uint64_t hash = 0;  // element_hash.h: not finished
};

// Strided, without the bits that change how memory reads. The numbers do not depend on the threads.
ElementSums element_sums(const at::Tensor& tensor);
// `hash` alone: a third of the work.
uint64_t element_hash_sum(const at::Tensor& tensor);

}  // namespace op_tools
