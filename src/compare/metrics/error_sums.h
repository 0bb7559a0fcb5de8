// The sums over elements that tensor_diff.h makes its numbers of. Only tensor_diff.cpp calls this, from any thread; it
// spreads over as many threads as torch uses, and its findings do not depend on their number.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

#include "compare/metrics/tensor_diff.h"

namespace op_tools {

// The terms of the sums. The elements of both lie without gaps, in the same order.
struct SumPlan {
  const DiffOptions* options;
  c10::ScalarType result_dtype, golden_dtype;
  bool is_complex, is_exact;
  double least, unit, limit;  // of the result's dtype; limit: a golden value beyond it rounds to an infinity
  double scale = 1;           // for numbers whose squares are too large or too small for a double
};

// d: |result - golden|, m: |golden|, over the elements that are finite on both sides.
struct ErrorSums {
  double max_d = 0, sum_d = 0, sum_d2 = 0, max_rel = 0, max_ulp = 0, sum_ulp = 0, max_m = 0;
  double ab = 0, aa = 0, bb = 0;
  int64_t outside = 0;
  int64_t worst_at = -1, mismatch_at = -1;
  NonFinite result, golden;
  int64_t mismatches = 0;
  std::array<int64_t, 4> over_relative{}, over_ulp{};
  int64_t small_outside = 0, normal_outside = 0;
  bool bits_equal = true;
};

ErrorSums sum_errors(const SumPlan& plan, const void* result, const void* golden, int64_t numel);

// How many elements of `result` are NaN or infinite otherwise than in `golden` and otherwise than in `reference`, which
// is of the result's dtype.
int64_t count_unexpected_nonfinite(const SumPlan& plan, const void* result, const void* golden, const void* reference,
                                   int64_t numel);

}  // namespace op_tools
