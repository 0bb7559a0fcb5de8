// How far a result may be from its reference: the only table of numbers (version kToleranceVersion) and its overrides
// from the environment. Code, documentation and tests read the numbers here.
//
//   AUTOCOMPARE_ERROR_TOLERANCE="1e-3,1e-3"              every inexact dtype: "atol,rtol"
//   AUTOCOMPARE_ERROR_TOLERANCE_BFLOAT16="1e-2,1e-2"     a dtype (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
//   LINEAR_AUTOCOMPARE_ERROR_TOLERANCE[_FLOAT16]="1e-3,0"   an op, by the last part of its name in capitals
//
// The more exact name wins: op and dtype, op, dtype, all. Immutable after construction: any thread may ask.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <string_view>

#include "base/export.h"

namespace op_tools {

constexpr int kToleranceVersion = 2;

struct Tolerance {
  double atol = 0;
  double rtol = 0;  // of the golden value: |result - golden| <= atol + rtol * |golden|
};

// Tolerances that depend on the size of the golden value.
struct SmallValues {
  double below = 0;  // |golden| at or under it is small: judged by atol, all others by rtol
  double atol = 0;
  double rtol = 0;
};

// The range of a dtype. Complex dtypes: their parts.
struct Rounding {
  double unit = 0;        // spacing of the numbers just above 1
  double accumulate = 0;  // the same of the dtype in which a good kernel adds up (float32 for 16-bit floats)
  double least = 0;       // under it the spacing does not shrink any more
  double most = 0;        // larger numbers are infinities

  bool accumulates_wider() const { return unit > accumulate; }
};

// Method "relative": an error against golden (float64) may be `ratio` times the error of the CPU in the same dtype,
// plus a floor. Floors of rmse and max count units of the dtype, of the golden's root mean square and of its largest
// value; they grow with sqrt(K) of the dtype in which sums are accumulated, K being the elements that go into a result.
// With n elements, rmse's floor has 1/sqrt(n) more, and is at least floor + 1 of the largest value over sqrt(n).
struct RelativeNumbers {
  double rmse_ratio, max_ratio, ulp_ratio;
  double rmse_floor, max_floor, ulp_floor;
};
// Where those limits are broken, golden is run on inputs that are changed by less than their own rounding. The change
// of the result is how exactly it can be known at all, and this multiple of it passes.
struct NoiseNumbers {
  int samples = 3;
  double rmse_ratio = 6, max_ratio = 8, ulp_ratio = 8;
  // More ULP where n elements are added up, by this multiple of the root of n. A mean that is updated with each element
  // (Welford's, in float32) was off by up to 2.3 units of the elements' mean size for 6 of them, 0.8 for 64 and 0.4 for
  // 1,024, while changed inputs move it by a unit divided by the root of n.
  double ulp_growth = 2;
  // Of the kernel's own results for changed inputs, in gradients without a CPU reference.
  double own_rmse_ratio = 3, own_max_ratio = 4;
  // More where n elements are added up one after the other: this multiple of the root of n, as the rounding of partial
  // sums adds up, but no more than this share of n. torch's CPU kernels do so (the bias of a convolution, statistics of
  // a batch in channels_last): up to 2.1 was measured.
  double in_order_growth = 4, in_order_share = 0.125;
  // A gradient that adds up n equal terms in order (the bias of a convolution, the loss a mean) is off by up to this
  // share of n units, always to the same side: 0.115 was measured.
  double equal_terms_share = 0.125;
  // Of graphs, whose reference adds up in the same order in some operators.
  double graph_in_order_growth = 0.25;
  // In 16-bit floats no more than this multiple of the error that the kernel has in float32, scaled by the units: a sum
  // that stops growing in 16 bits has none there.
  double float32_ratio = 2;
  // And nothing where that error is within this many units of the largest value, grown with the root of the terms'
  // number: no terms cancel then.
  double cancelling_units = 4;
};

class OP_TOOLS_API ToleranceTable {
 public:
  // Throws Error that names variable and value when any of the variables above is not "atol,rtol".
  static ToleranceTable from_environment();
  ToleranceTable() = default;  // the table alone

  // `dtype`: of the golden tensor. Complex dtypes are judged as their parts; integers and bool are exact always.
  Tolerance allclose(std::string_view op_name, c10::ScalarType dtype) const;
  // An environment variable speaks about this op and dtype.
  bool overridden(std::string_view op_name, c10::ScalarType dtype) const;

 private:
  const Tolerance* override_for(std::string_view op_name, std::string_view suffix) const;
  std::map<std::string, Tolerance, std::less<>> overrides_;  // by the variable's name
};

// All-zero for integers and bool, which are exact.
OP_TOOLS_API Rounding rounding_of(c10::ScalarType dtype);
// The unit of float32 products whose factors are rounded to TF32.
OP_TOOLS_API double tf32_unit();
OP_TOOLS_API RelativeNumbers relative_numbers(c10::ScalarType dtype);
OP_TOOLS_API SmallValues msprobe_absolute(c10::ScalarType dtype);

// A result whose own CPU error is at most this many ULP is judged by ULP too: an op that adds up (and cancels) is not.
constexpr double kElementwiseUlp = 4;
// Below this many elements an rmse is a poor estimate: the ratios are 1.5 times as large.
constexpr int64_t kFewElements = 1000;
// Where the exact result is an integer that is rounded once (floor_divide): half a unit, and the loss when it
// passes through float32.
constexpr double kRoundedOnceUlp = 0.75;
// Two float64 runs of a call that differ by more than this share of the largest value do so for another reason than
// rounding.
constexpr double kFloat64Rounding = 1e-9;
// Without a CPU reference of the same dtype (CPU tensors) the floors and the noise are multiplied by this.
constexpr double kAloneFactor = 4;

// The allowed share of a distance's own rounding: where it is more, the result says nothing of how far apart its inputs
// are.
constexpr double kDistanceNoise = 0.5;
constexpr double kAloneGrowth = 8;  // such a part of a unit for each addition, in the root
// Where no float64 run exists: tolerance against the CPU, in units of the dtype, relative to the largest value.
constexpr double kWithoutGoldenUnits = 16, kWithoutGoldenFloat16Units = 8;

// Method "ulp" (matmul family of msprobe).
constexpr double kFloat16Ulp = 1, kFloat16UlpShare = 1e-3;
constexpr double kFloat32MeanUlp = 64, kFloat32Ulp = 32, kFloat32UlpShare = 0.05;
// Method "msprobe-quick", in its order.
constexpr double kQuickCosine = 0.99, kQuickMaxAbs = 1e-3;
constexpr double kQuickFloat16Error[] = {1e-2, 1e-2}, kQuickFloat16Warning[] = {1e-3, 1e-3};  // relative, share
constexpr double kQuickFloat32Error[] = {1e-3, 1e-3}, kQuickFloat32Warning[] = {1e-4, 1e-4};

// Random numbers of a known distribution: how improbable they must be to be called wrong.
constexpr double kRandomSignificance = 1e-12;

// The whole table for people, as the documentation prints it: per dtype its unit; of the method relative how many times
// the CPU's own error plus how many units; atol, rtol of allclose; atol up to which |golden|, then rtol of
// msprobe-absolute.
OP_TOOLS_API std::string tolerance_text();

}  // namespace op_tools
