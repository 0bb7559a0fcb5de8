// The difference of two tensors, result against golden, in numbers: one pass over the data, no
// verdict by itself beyond "how many elements are outside the tolerance".
//
// NaN is equal to NaN, an infinity to the same infinity. Integers and bool are compared exactly (no
// wrap-around); half, bfloat16 and eight-bit floats as doubles; complex numbers by the size of
// their difference. Sparse tensors are compared coalesced. Tensors of any device (copied to the
// CPU); thread-safe; autograd records nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "compare/tolerance.h"
#include "hooks/export.h"

namespace op_tools {

struct NonFinite {
  int64_t nan = 0, pos_inf = 0, neg_inf = 0;
};

struct TensorDiff {
  // Not empty: the two cannot be compared by element, and this says why ("shape [2, 3], golden [2,
  // 4]"). The numbers below are meaningless then.
  std::string structure;

  bool bits_equal = true;  // every element has the same bits
  int64_t numel = 0;
  int64_t outside = 0;  // elements outside the tolerance, non-finite mismatches included
  double max_abs = 0;   // over the elements finite on both sides
  double max_rel = 0;   // |result - golden| / |golden|; infinite where golden is 0 and result is not
  double mean_abs = 0;
  double cosine = 1;  // 1 when both are all zero (or empty), 0 when one is
  NonFinite result, golden;
  int64_t nonfinite_mismatches = 0;  // elements where one side is NaN or infinite and the other is not the same

  // The element that differs most (a non-finite mismatch before any number); empty when none
  // differs.
  std::vector<int64_t> worst_index;  // empty for a 0-dim tensor too: see has_worst
  bool has_worst = false;
  std::string worst_result, worst_golden;  // as text, exactly

  bool within() const { return structure.empty() && outside == 0; }
};

OP_TOOLS_API TensorDiff diff_tensors(const at::Tensor& result, const at::Tensor& golden, Tolerance tolerance);

}  // namespace op_tools
