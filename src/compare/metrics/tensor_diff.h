// The difference of two tensors in numbers: result against golden, every number from a single pass over the data, no
// verdict (judge.h has those).
//
// `golden` may be wider than `result` (a float64 golden of a bfloat16 result): a number that the result's dtype cannot
// hold counts as an infinity, and ULPs are those of the result's dtype. Integers and bool are compared exactly (nothing
// wraps), complex numbers by the size of their difference. Sparse tensors are compared coalesced. Tensors of any device
// (copied to the CPU); thread-safe, spreads over as many threads as torch uses; autograd records nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/export.h"
#include "compare/metrics/tolerance.h"

namespace op_tools {

struct NonFinite {
  int64_t nan = 0, pos_inf = 0, neg_inf = 0;
};

struct TensorDiff {
  // Not empty: the two cannot be compared by element, and this says why ("shape [2, 3], expected [2, 4]"). `kind` is
  // its first word. The numbers below are meaningless then.
  std::string structure, kind;

  bool bits_equal = true;  // every element has the same bits
  int64_t numel = 0;
  int64_t outside = 0;  // elements outside the tolerance, non-finite mismatches included
  double max_abs = 0;   // over the elements finite on both sides, as all numbers here
  double max_rel = 0;   // |result - golden| / |golden|; infinite where golden is 0 and result is not
  double mean_abs = 0;
  double rmse = 0;
  double max_ulp = 0;  // in units of the last place of golden in the result's dtype; 0 for integers
  double mean_ulp = 0;
  double cosine = 1;      // 1 when both are all zero (or empty), 0 when either is
  double golden_max = 0;  // largest |golden|
  double golden_rms = 0;  // root of the mean square of golden
  NonFinite result, golden;
  int64_t nonfinite_mismatches = 0;  // elements where a side is NaN or infinite and the other is not the same

  // The element that differs most (a non-finite mismatch before any number).
  bool has_worst = false;
  std::vector<int64_t> worst_index;        // empty for a 0-dim tensor
  std::string worst_result, worst_golden;  // as exact strings

  // By limit of the options' `relative_limits`, `ulp_limits`: how many elements are over it. A golden of 0 counts when
  // the result is not 0.
  std::vector<int64_t> over_relative, over_ulp;
  // By the options' SmallValues: how many elements with |golden| at or under `below` differ by more than `atol`, and
  // how many others by more than `rtol` of golden.
  int64_t small_outside = 0, normal_outside = 0;

  bool within() const { return structure.empty() && outside == 0; }
};

struct DiffOptions {
  Tolerance tolerance = {};
  bool nan_equal = true;  // NaN is equal to NaN
  std::vector<double> relative_limits = {}, ulp_limits = {};
  SmallValues small = {};
};

OP_TOOLS_API TensorDiff diff_tensors(const at::Tensor& result, const at::Tensor& golden,
                                     const DiffOptions& options = {});

// Puts the element that is farthest from golden in units of its own last place in the place of the worst element. Both
// of the same shape.
OP_TOOLS_API void find_worst_by_ulp(const at::Tensor& result, const at::Tensor& golden, TensorDiff* diff);

// Each element from the candidate (of the shape of `result`, float64) that is nearest to the result there.
OP_TOOLS_API at::Tensor nearest(const at::Tensor& result, const std::vector<at::Tensor>& candidates);

// same_strided_bits() (tensor/tensor_bits.h), and the same of tensors of other layouts.
OP_TOOLS_API bool same_bits(const at::Tensor& a, const at::Tensor& b);

// Other runs of a call, of the shape of its result: undefined tensors and those of another shape say nothing.
struct NonfiniteRuns {
  std::vector<at::Tensor> as_result;  // an element that is NaN or infinite (or neither) as in the result is explained
  std::vector<at::Tensor> as_golden;  // likewise, as in golden
};
// How many elements of `result` are NaN or infinite otherwise than in `golden`, and explained by no other run.
OP_TOOLS_API int64_t inexplicable_nonfinite(const at::Tensor& result, const at::Tensor& golden,
                                            const NonfiniteRuns& runs);

// How many elements of `result` are NaN or infinite otherwise than in `golden` and otherwise than in `reference`. All
// of the same shape.
OP_TOOLS_API int64_t unexpected_nonfinite(const at::Tensor& result, const at::Tensor& golden,
                                          const at::Tensor& reference);

}  // namespace op_tools
