#include <algorithm>
#include <cmath>
#include <utility>

#include "compare/judge_methods.h"

namespace op_tools {
namespace {

class ByDifference {
 public:
  ByDifference(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context)
      : result_(result), reference_(reference), context_(context), dtype_(result.scalar_type()) {}

  TensorVerdict judge(CompareMethod method) {
    verdict_.method = applied(method);
    switch (method) {
      case CompareMethod::kAllclose:
        return allclose();
      case CompareMethod::kUlp:
        return ulp();
      case CompareMethod::kMsprobeQuick:
        return quick();
      case CompareMethod::kMsprobeAbsolute:
        return absolute();
      default:
        return bitwise();
    }
  }

 private:
  bool measure(DiffOptions options, bool against_golden = false) {
    options.nan_equal = context_.nan_equal;
    std::string why = "there is no CPU result to compare with";
    at::Tensor expected = against_golden || !reference_.defined() ? golden(&why) : reference_;
    if (!expected.defined()) expected = reference_;
    if (!expected.defined()) {
      verdict_ = not_judged(context_.golden ? Unjudged::kNoFloat64 : Unjudged::kNoReference, why);
      return false;
    }
    verdict_.diff = diff_tensors(result_, expected, options);
    if (verdict_.diff.structure.empty()) {
      expected_ = expected;
      return true;
    }
    // Another form in float64 is no failure: an operator may choose its kernel, and the contents of its scratch memory,
    // by dtype.
    verdict_ = reference_.defined()
                   ? differs(verdict_.diff.kind, verdict_.diff.structure)
                   : not_judged(Unjudged::kNoFloat64, "the float64 run gives another " + verdict_.diff.structure);
    return false;
  }

  at::Tensor golden(std::string* why) const { return context_.golden ? context_.golden(why) : at::Tensor(); }

  // `share`: of all elements.
  double share(int64_t count) const {
    return verdict_.diff.numel == 0 ? 0 : static_cast<double>(count) / static_cast<double>(verdict_.diff.numel);
  }

  void fail(Deciding deciding, double number, double limit, std::string reason = {}) {
    verdict_.verdict = Verdict::kDiffers;
    verdict_.kind = "values";
    note(deciding, number, limit);
    verdict_.reason = std::move(reason);
  }
  void note(Deciding deciding, double number, double limit) {
    verdict_.deciding = deciding;
    verdict_.number = number;
    verdict_.limit = limit;
  }

  TensorVerdict bitwise() {
    if (!measure({})) return verdict_;
    verdict_.thresholds = "every element the same";
    note(Deciding::kElements, static_cast<double>(verdict_.diff.outside), 0);
    if (verdict_.diff.outside > 0) {
      fail(Deciding::kElements, verdict_.number, 0);
    } else if (is_of_other_zeros()) {
      fail(Deciding::kBits, 0, 0, "a zero of the other sign");
    }
    if (context_.hands_out) verdict_.expected = std::make_shared<Expectation>(expect_exactly(expected_));
    return verdict_;
  }

  // Elements that are equal numbers differ in bits.
  bool is_of_other_zeros() const {
    const TensorDiff& diff = verdict_.diff;
    return reference_.defined() && !diff.bits_equal && diff.result.nan == 0 && at::isFloatingType(dtype_);
  }

  // |golden| at or under `below`: atol alone; others: `atol_above` and rtol of golden.
  void hand_out(double below, double atol, double atol_above, double rtol) {
    if (!context_.hands_out) return;
    verdict_.expected =
        std::make_shared<Expectation>(expect_near({expected_}, dtype_, std::numeric_limits<double>::max()));
    const at::Tensor size = verdict_.expected->values.front().abs();
    const at::Tensor above = size.mul(rtol).add(atol_above).nan_to_num(0, std::numeric_limits<double>::max());
    verdict_.expected->limit = above.masked_fill(size.le(below), atol);
  }

  TensorVerdict allclose() {
    const Tolerance tolerance = context_.tolerances->allclose(context_.op, dtype_);
    if (!measure({.tolerance = tolerance})) return verdict_;
    verdict_.thresholds = "atol " + number_text(tolerance.atol) + ", rtol " + number_text(tolerance.rtol);
    note(Deciding::kElements, static_cast<double>(verdict_.diff.outside), 0);
    if (verdict_.diff.outside > 0) fail(Deciding::kElements, verdict_.number, 0);
    hand_out(-1, 0, tolerance.atol, tolerance.rtol);
    return verdict_;
  }

  TensorVerdict ulp() {
    if (!measure({.ulp_limits = {rounding_of(dtype_).accumulates_wider() ? kFloat16Ulp : kFloat32Ulp}}, true))
      return verdict_;
    const TensorDiff& diff = verdict_.diff;
    const double over = share(diff.over_ulp[0]);
    if (rounding_of(dtype_).accumulates_wider()) {
      verdict_.thresholds = "share over " + number_text(kFloat16Ulp) + " ULP < " + number_text(kFloat16UlpShare);
      note(Deciding::kShareOverUlp, over, kFloat16UlpShare);
      if (over >= kFloat16UlpShare || diff.nonfinite_mismatches > 0)
        fail(Deciding::kShareOverUlp, over, kFloat16UlpShare);
      return verdict_;
    }
    verdict_.thresholds = "mean ULP < " + number_text(kFloat32MeanUlp) + ", or share over " + number_text(kFloat32Ulp) +
                          " ULP < " + number_text(kFloat32UlpShare);
    note(Deciding::kMeanUlp, diff.mean_ulp, kFloat32MeanUlp);
    const bool far = diff.mean_ulp >= kFloat32MeanUlp && over >= kFloat32UlpShare;
    if (far || diff.nonfinite_mismatches > 0) fail(Deciding::kMeanUlp, diff.mean_ulp, kFloat32MeanUlp);
    return verdict_;
  }

  TensorVerdict quick() {
    const auto& error = rounding_of(dtype_).accumulates_wider() ? kQuickFloat16Error : kQuickFloat32Error;
    const auto& warning = rounding_of(dtype_).accumulates_wider() ? kQuickFloat16Warning : kQuickFloat32Warning;
    if (!measure({.relative_limits = {error[0], warning[0]}})) return verdict_;
    const TensorDiff& diff = verdict_.diff;
    verdict_.thresholds = "cosine > " + number_text(kQuickCosine) + ", then max abs < " + number_text(kQuickMaxAbs) +
                          ", then share over " + number_text(error[0]) + " relative <= " + number_text(error[1]);
    if (diff.nonfinite_mismatches > 0) {
      fail(Deciding::kNonfinite, static_cast<double>(diff.nonfinite_mismatches), 0);
    } else if (diff.cosine <= kQuickCosine) {
      fail(Deciding::kCosine, diff.cosine, kQuickCosine);
    } else if (diff.max_abs < kQuickMaxAbs) {
      note(Deciding::kMaxAbs, diff.max_abs, kQuickMaxAbs);
    } else {
      note(Deciding::kShareOverRelative, share(diff.over_relative[0]), error[1]);
      if (verdict_.number > error[1]) {
        fail(verdict_.deciding, verdict_.number, error[1]);
      } else if (share(diff.over_relative[1]) > warning[1]) {
        verdict_.reason = "warning: " + number_text(share(diff.over_relative[1])) + " of the elements over " +
                          number_text(warning[0]) + " relative";
      }
    }
    return verdict_;
  }

  TensorVerdict absolute() {
    const SmallValues small = msprobe_absolute(dtype_);
    if (!measure({.small = small})) return verdict_;
    const TensorDiff& diff = verdict_.diff;
    verdict_.thresholds = "|golden| <= " + number_text(small.below) + ": atol " + number_text(small.atol) +
                          ", else rtol " + number_text(small.rtol);
    const int64_t outside = diff.small_outside + diff.normal_outside + diff.nonfinite_mismatches;
    note(Deciding::kElements, static_cast<double>(outside), 0);
    if (outside > 0) fail(Deciding::kElements, static_cast<double>(outside), 0);
    hand_out(small.below, small.atol, 0, small.rtol);
    return verdict_;
  }

  const at::Tensor& result_;
  const at::Tensor& reference_;
  const JudgeContext& context_;
  const c10::ScalarType dtype_;
  at::Tensor expected_;  // the value that the result was compared with
  TensorVerdict verdict_;
};

}  // namespace

TensorVerdict judge_by_difference(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context,
                                  CompareMethod method) {
  return ByDifference(result, reference, context).judge(method);
}

}  // namespace op_tools
