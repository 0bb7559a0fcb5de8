// The verdict about a tensor that a device computed: is it the operator's right result? Methods by name; the
// numbers stand in tolerance.h, the method in docs/autocompare.md. Used by the compare hook and by
// run_op_from_data. Pure, thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/export.h"
#include "compare/compare_options.h"
#include "compare/expectation.h"
#include "compare/metrics/tensor_diff.h"
#include "compare/metrics/tolerance.h"
#include "coverage/coverage.h"
#include "coverage/coverage_text.h"

namespace op_tools {

// The metric that decided.
enum class Deciding : uint8_t {
  kNothing,  // there was nothing to measure
  kBits,     // they are the same
  kNonfinite,
  kRmse,
  kMaxError,
  kMaxUlp,
  kElements,  // that differ, or are outside
  kMeanUlp,
  kShareOverUlp,
  kCosine,
  kMaxAbs,
  kShareOverRelative,
  kDistance,  // Kolmogorov-Smirnov
  kHits,
  kRange,
  kDropped,  // an element is neither dropped nor scaled
  kMean,
  kMissing,  // of a permutation
};
OP_TOOLS_API Token token_of(Deciding deciding);

// The method as it was applied: that of the options, or its substitute.
enum class AppliedMethod : uint8_t {
  kNone,
  kRelative,
  kRelativeToCpu,  // there is no float64 run
  kAllclose,
  kBitwise,
  kUlp,
  kMsprobeQuick,
  kMsprobeAbsolute,
  kStatistical,
};
OP_TOOLS_API std::string_view to_string(AppliedMethod method);

struct JudgeContext {
  std::string_view op;
  CompareMethod method = CompareMethod::kRelative;
  const ToleranceTable* tolerances = nullptr;
  bool nan_equal = true;
  int64_t reduced = 1;  // about how many elements go into an element of the result
  // Spacing of a dtype coarser than the result's in which parts of it were rounded (autocast, inputs in 16-bit floats);
  // 0: none.
  double coarser_unit = 0;
  bool by_ulp = true;  // where the CPU is right to a few ULP: the result must be too, in its smallest elements
  // The same result from float64 inputs; an undefined tensor where there is none, *why then holds the reason. Asked at
  // most once, and only where it decides.
  std::function<at::Tensor(std::string* why)> golden;
  // The same result, in float64 where that exists, from inputs changed by less than their rounding: a different change
  // for each `sample`. `coarse`: by the rounding of their own dtype, else of the dtype in which sums are accumulated.
  std::function<at::Tensor(int sample, bool coarse)> perturbed;
  // The same with the call's numbers as float32 holds them; undefined where they are no others.
  std::function<at::Tensor()> float32_scalars;
  // The same result by the CPU's kernel in its own dtypes, from the same inputs (sample 0) and from inputs changed by
  // about a unit. An error that a change of the inputs draws anew is rounding that no implementation avoids: terms
  // inside the operator cancel. In 16-bit floats a unit is too much for that, except where nothing else tells a
  // gradient's rounding (`perturbs_16_bits`: on the CPU).
  std::function<at::Tensor(int sample)> rerun_perturbed;
  bool perturbs_16_bits = false;
  // A graph of operators, each of which rounds its result to its dtype: the rounding of the inputs' own dtype counts.
  bool rounds_inside = false;
  // The part of its own rounding that may be allowed to the operator, as a share of the result's size: half of a
  // distance says nothing of it any more. Infinite: all.
  double own_noise_share = std::numeric_limits<double>::infinity();
  // The same in float32 in the place of 16-bit floats, from inputs changed by about a unit of float32: shows how much
  // cancels inside the operator.
  std::function<at::Tensor(int sample)> in_float32;
  int64_t terms = 1;  // at most about as many elements are added up in an element; `reduced` counts those that are sure
  // At most about as many elements are added up one after the other: kernels that do so round more than those that add
  // in pieces, and by more than the sum itself where its terms cancel.
  std::function<int64_t()> in_order;
  bool may_be_equal_terms = false;  // these, in a gradient
  // The size of numbers that are rounded on the way and are no inputs, and not as small as the result (the sum of a
  // softmax whose logarithm is nearly zero). Asked only where it decides; 0: none.
  std::function<double()> rounded_inside;
  int64_t rounded_terms = 1;     // so many are added up to such a number: those below its rounding are lost one by one
  bool rounds_in_steps = false;  // a formula, of which FMA saves some steps: a kernel that is exact proves nothing
  // The result is an integer number that the dtype rounds once: no error of a unit is rounding.
  bool rounded_once = false;
  // The result's elements are elements of the inputs: no error is rounding, but numbers below the dtype's smallest
  // normal number may become zero.
  bool copies = false;
  // Golden from inputs that do not lie side by side, where an input is NaN: kernels give other results for NaN where
  // they take several elements at once than for the rest of a tensor. Undefined: no input is.
  std::function<at::Tensor()> golden_apart;
  // TensorVerdict::expected is wanted: limits become as wide as they may, whether the result needs it or not.
  bool hands_out = false;
  // The same result on the CPU with everything in the dtype of the call's autocast, which decides by lists that no two
  // devices share. Empty: no autocast.
  std::function<at::Tensor()> in_autocast_dtype;
  Rounding autocast = {};  // of that dtype
  // Of a gradient, on the CPU: the call's own result is larger than the largest number of its dtype.
  std::function<bool()> overflowed;
};

// The part of a TensorDiff against golden that a row reports. Small, because a row is held for each judgement.
struct GoldenError {
  double rmse = 0, max_abs = 0;
};

struct TensorVerdict {
  Verdict verdict = Verdict::kAgrees;
  std::string kind;  // of the difference: "values", "shape", "dtype", "layout", "presence", ...
  AppliedMethod method{};
  std::string thresholds;  // in words and numbers
  Deciding deciding{};     // the metric nearest to (or farthest over) its limit
  double number = 0, limit = 0;
  std::string reason;       // for a verdict that needs words
  Unjudged unjudged{};      // of kNotJudged: the reason as a token
  bool wide_limit = false;  // zeros in place of the result would agree, too
  TensorDiff diff;          // result against the reference; against golden where there is no reference
  std::optional<GoldenError> error, reference_error;  // where golden was asked for
  // Where JudgeContext::hands_out asks for it; null too where no limits by element decide.
  std::shared_ptr<Expectation> expected;
};

// `reference`: the CPU's result in the same dtype; undefined: there is none (the result is the CPU's).
OP_TOOLS_API TensorVerdict judge(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context);

// A verdict without numbers.
OP_TOOLS_API TensorVerdict differs(std::string kind, std::string reason);
OP_TOOLS_API TensorVerdict not_judged(Unjudged why, std::string reason);

}  // namespace op_tools
