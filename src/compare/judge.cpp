#include "compare/judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "base/text_table.h"

namespace op_tools {
namespace {

std::string number_text(double value) {
  return formatted("%.4g", value);
}

// A measure, and how much of it is let pass.
struct Criterion {
  Deciding metric;
  double number, limit;

  bool broken() const { return !(number <= limit); }
  double share() const { return limit > 0 ? number / limit : number > 0 ? HUGE_VAL : 0; }
};

class Relative {
 public:
  Relative(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context)
      : result_(result),
        reference_(reference),
        context_(context),
        rounding_(rounding_of(result.scalar_type())),
        unit_(std::max(rounding_.unit, context.coarser_unit)),
        numbers_(unit_ > rounding_.unit ? relative_numbers(c10::ScalarType::BFloat16)
                                        : relative_numbers(result.scalar_type())) {}

  TensorVerdict judge() {
    TensorVerdict& verdict = verdict_;
    verdict.method = AppliedMethod::kRelative;
    const bool alone = !reference_.defined();
    std::string why = "no float64 run was asked for";
    at::Tensor golden = context_.golden ? context_.golden(&why) : at::Tensor();
    const DiffOptions options{.nan_equal = context_.nan_equal};
    TensorDiff error;
    if (golden.defined()) {
      error = diff_tensors(result_, golden, options);
      if (!error.structure.empty()) {
        why = "the float64 run gives another " + error.structure;
        golden = at::Tensor();
      }
    }
    if (!golden.defined() && alone) return not_judged(Unjudged::kNoFloat64, why);
    if (!golden.defined()) return against_reference(why);
    candidates_ = {golden};
    const bool is_settled = settle_golden(alone, &golden);
    if (is_settled) error = diff_tensors(result_, golden, options);

    TensorDiff reference_error;  // all zero without a reference
    if (!alone) {
      reference_error = diff_tensors(reference_, golden, options);
      verdict.diff = diff_tensors(result_, reference_, options);
      verdict.reference_error = {reference_error.rmse, reference_error.max_abs};
    } else {
      verdict.diff = error;
    }
    verdict.error = {error.rmse, error.max_abs};
    error_ = error;
    golden_ = golden;
    const bool by_golden = alone || error.nonfinite_mismatches == 0 || !context_.nan_equal;
    const int64_t unexpected =
        by_golden ? error.nonfinite_mismatches : unexpected_nonfinite(result_, golden, reference_);
    const bool may_be_open = context_.nan_equal && (!is_settled || context_.rounded_once);
    const bool lacks = unexpected > 0 && (!may_be_open || has_inexplicable_nonfinite(golden, alone));
    if (lacks && !context_.hands_out) return not_finite(unexpected);

    set_limits(error, reference_error, alone);
    if (!is_settled && !context_.copies) widen_limits(golden, error, reference_error, alone);
    if (context_.hands_out) hand_out(alone, may_be_open, lacks);
    return lacks ? not_finite(unexpected) : finish(describe(alone));
  }

 private:
  static constexpr int64_t kDoubtless = 16;

  // As long as a criterion is broken.
  void widen_limits(const at::Tensor& golden, const TensorDiff& error, const TensorDiff& reference_error, bool alone) {
    if (is_open() && context_.in_autocast_dtype) allow_autocast(golden, error, reference_error, alone);
    // A CPU result that is golden, rounded once, leaves no doubt about the right result. (In float64 it is golden
    // itself.)
    const bool is_finer = rounding_of(golden.scalar_type()).unit < rounding_.unit;
    const bool exact = !alone && is_finer && reference_error.max_ulp <= 0.5 && error.numel >= kDoubtless;
    if (is_open() && !exact) allow_noise(golden, alone);
    if (is_open() && !exact && (unit_ <= rounding_.accumulate || context_.perturbs_16_bits)) allow_own_noise(alone);
  }

  bool is_open() const { return context_.hands_out || any_broken(); }

  // The criteria as limits of elements. `lacks`: NaN and infinities of the result are wrong.
  void hand_out(bool alone, bool may_be_open, bool lacks) {
    verdict_.expected = std::make_shared<Expectation>(expect(candidates_, error_));
    Expectation* const expected = verdict_.expected.get();
    if (!alone) allow_nonfinite_as_in(reference_, expected);
    if (alone && !lacks) allow_nonfinite_as_in(result_, expected);
    if (!may_be_open) return;
    for (int sample = 0; context_.perturbed && sample < NoiseNumbers().samples; ++sample) {
      allow_nonfinite_as_in(context_.perturbed(sample, /*coarse=*/true), expected);
    }
    for (int sample = 1; !alone && context_.rerun_perturbed && sample <= NoiseNumbers().samples; ++sample) {
      allow_nonfinite_as_in(context_.rerun_perturbed(sample), expected);
    }
  }

  Expectation expect(const std::vector<at::Tensor>& values, const TensorDiff& diff) const {
    double most = std::numeric_limits<double>::max();
    for (const Criterion& criterion : criteria_) {
      if (criterion.metric == Deciding::kMaxError) most = criterion.limit;
    }
    Expectation expected = expect_near(values, result_.scalar_type(), most);
    for (const Criterion& criterion : criteria_) {
      if (criterion.metric == Deciding::kMaxUlp) limit_by_ulp(criterion.limit, &expected);
      if (criterion.metric != Deciding::kRmse) continue;
      // Of a sparse tensor the judge counts the elements that it stores.
      const auto all = static_cast<double>(std::max<int64_t>(1, expected.values.front().numel()));
      expected.rmse = criterion.limit * std::sqrt(static_cast<double>(diff.numel) / all);
    }
    return expected;
  }

  bool is_16_bits() const { return unit_ > rounding_.accumulate; }
  bool is_rounded_once() const { return context_.rounded_once && is_16_bits(); }

  // Golden where a single float64 run does not tell it. True: it is chosen, and no further change of the inputs is
  // asked.
  // - A step (floor_divide): of each element that of the runs from changed inputs which is nearest to the result.
  // - NaN among the inputs: kernels that take several elements at once may give other results than for the rest of a
  //   tensor. The CPU's own result has to be the result of each element by itself; a device may follow either.
  bool settle_golden(bool alone, at::Tensor* golden) {
    if (is_rounded_once() && context_.perturbed) {
      std::vector<at::Tensor> candidates{*golden};
      for (int sample = 0; sample < NoiseNumbers().samples; ++sample) {
        candidates.push_back(context_.perturbed(sample, /*coarse=*/false));
      }
      if (context_.float32_scalars) candidates.push_back(context_.float32_scalars());
      *golden = nearest(result_, candidates);
      candidates_.clear();
      std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(candidates_),
                   [&](const at::Tensor& one) { return one.defined() && one.sizes() == result_.sizes(); });
      return true;
    }
    const at::Tensor apart = context_.golden_apart ? context_.golden_apart() : at::Tensor();
    if (!apart.defined()) return false;
    const TensorDiff moved = diff_tensors(apart, *golden, {.nan_equal = true});
    if (!moved.structure.empty()) return false;
    if (moved.nonfinite_mismatches == 0 && moved.max_abs <= kFloat64Rounding * moved.golden_max) return false;
    if (alone) candidates_.clear();
    candidates_.push_back(apart);
    *golden = nearest(result_, candidates_);
    return true;
  }

  // The CPU's own kernels often add up in the dtype itself.
  double floor_growth(bool alone) const {
    const double unit = alone ? std::max(rounding_.accumulate, unit_ / kAloneGrowth) : rounding_.accumulate;
    return unit * std::sqrt(static_cast<double>(context_.reduced));
  }

  void set_limits(const TensorDiff& error, const TensorDiff& reference, bool alone) {
    criteria_.clear();
    if (context_.copies) {
      criteria_.push_back(
          {Deciding::kMaxError, error.max_abs, numbers_.max_ratio * reference.max_abs + rounding_.least});
      return;
    }
    if (is_rounded_once()) {
      criteria_.push_back({Deciding::kMaxUlp, error.max_ulp, kRoundedOnceUlp + numbers_.ulp_ratio * reference.max_ulp});
      return;
    }
    const double n = static_cast<double>(std::max<int64_t>(1, error.numel));
    const double few = error.numel < kFewElements ? 1.5 : 1;
    const double times = alone ? kAloneFactor : 1;
    const double grown = floor_growth(alone);
    // Elements that are small beside the largest average nothing: its error alone may be that of a single number.
    const double averaged = (numbers_.rmse_floor + 1 / std::sqrt(n)) * error.golden_rms;
    const double of_largest = (numbers_.rmse_floor + 1) * error.golden_max / std::sqrt(n);
    const double rmse_floor = std::max(averaged, of_largest) * unit_ + grown * error.golden_rms;
    const double least = rounding_.least * rounding_.unit;
    criteria_.push_back(
        {Deciding::kRmse, error.rmse, numbers_.rmse_ratio * few * reference.rmse + times * rmse_floor + least});
    const double max_floor = (numbers_.max_floor * unit_ + grown) * error.golden_max;
    criteria_.push_back(
        {Deciding::kMaxError, error.max_abs, numbers_.max_ratio * few * reference.max_abs + times * max_floor + least});
    if (alone || !context_.by_ulp || unit_ > rounding_.unit || reference.max_ulp > kElementwiseUlp) return;
    criteria_.push_back({Deciding::kMaxUlp, error.max_ulp,
                         numbers_.ulp_ratio * reference.max_ulp + numbers_.ulp_floor + 4 * grown / rounding_.unit});
  }

  bool any_broken() const {
    return std::any_of(criteria_.begin(), criteria_.end(), [](const Criterion& one) { return one.broken(); });
  }

  // How much golden itself depends on the rounding of the inputs.
  void allow_noise(const at::Tensor& golden, bool alone) {
    if (!context_.perturbed) return;
    const NoiseNumbers noise;
    const double times = alone ? kAloneFactor / 2 : 1;
    // Few elements can be exact by luck: then the rounding of the inputs' own dtype counts.
    const bool coarse = alone || context_.rounds_inside || result_.numel() < kDoubtless;
    double rmse = 0, max = 0, ulp = 0;
    for (int sample = 0; sample <= noise.samples; ++sample) {
      const bool numbers = sample == noise.samples;
      if (numbers && !context_.float32_scalars) break;
      const at::Tensor other = numbers ? context_.float32_scalars() : context_.perturbed(sample, coarse);
      if (numbers && !other.defined()) break;
      if (!other.defined()) return;
      const TensorDiff moved = diff_tensors(other, golden, {.nan_equal = true});
      if (numbers && !moved.structure.empty()) break;
      if (!moved.structure.empty()) return;
      rmse = std::max(rmse, moved.rmse);
      max = std::max(max, moved.max_abs);
      ulp = std::max(ulp, moved.max_ulp * rounding_of(other.scalar_type()).unit / rounding_.unit);
    }
    for (Criterion& criterion : criteria_) {
      criterion.limit += times * (criterion.metric == Deciding::kRmse       ? noise.rmse_ratio * rmse
                                  : criterion.metric == Deciding::kMaxError ? noise.max_ratio * max
                                                                            : noise.ulp_ratio * ulp);
    }
    noise_text_ =
        "; inputs changed by their rounding move it by rmse " + number_text(rmse) + ", max " + number_text(max);
  }

  // The device's autocast may round where the CPU's does not, at most everywhere.
  void allow_autocast(const at::Tensor& golden, const TensorDiff& error, TensorDiff reference, bool alone) {
    const at::Tensor rounded = context_.in_autocast_dtype();
    if (!rounded.defined()) return;
    const TensorDiff most = diff_tensors(rounded, golden, {.nan_equal = true});
    if (!most.structure.empty()) return;
    reference.rmse = std::max(reference.rmse, most.rmse);
    reference.max_abs = std::max(reference.max_abs, most.max_abs);
    set_limits(error, reference, alone);
    noise_text_ =
        "; all of it in the dtype of autocast: rmse " + number_text(most.rmse) + ", max " + number_text(most.max_abs);
  }

  // NaN and infinities that a change of the inputs by their rounding makes or takes away (0 / 0 of differences that
  // cancel) are no failures.
  bool has_inexplicable_nonfinite(const at::Tensor& golden, bool alone) const {
    NonfiniteRuns runs;
    if (reference_.defined()) runs.as_result.push_back(reference_);
    const NoiseNumbers noise;
    for (int sample = 0; context_.perturbed && sample < noise.samples; ++sample) {
      runs.as_result.push_back(context_.perturbed(sample, /*coarse=*/true));
    }
    // The CPU's kernel: for its own result the elements that make it golden's count.
    auto& of_kernel = alone ? runs.as_golden : runs.as_result;
    for (int sample = 1; context_.rerun_perturbed && sample <= noise.samples; ++sample) {
      of_kernel.push_back(context_.rerun_perturbed(sample));
    }
    return inexplicable_nonfinite(result_, golden, runs) > 0;
  }

  // How much the kernel's own rounding depends on the rounding of the inputs. A kernel that is wrong in the same way
  // each time gains nothing by it, a kernel that gives another result each time is not asked.
  void allow_own_noise(bool alone) {
    if (!context_.rerun_perturbed) return;
    const at::Tensor again = alone ? context_.rerun_perturbed(0) : reference_;
    if (!again.defined() || (alone && !same_bits(again, result_))) return;
    const NoiseNumbers noise;
    double rmse = 0, max = 0;
    for (int sample = 1; sample <= noise.samples; ++sample) {
      const at::Tensor other = context_.rerun_perturbed(sample);
      if (!other.defined()) return;
      const TensorDiff moved = diff_tensors(other, again, {.nan_equal = true});
      if (!moved.structure.empty()) return;
      rmse = std::max(rmse, moved.rmse);
      max = std::max(max, moved.max_abs);
    }
    rmse = std::min(noise.own_rmse_ratio * rmse, context_.own_noise_share * error_.golden_rms);
    max *= noise.own_max_ratio;
    if (is_16_bits() && !bound_by_float32(&rmse, &max)) return;
    for (Criterion& criterion : criteria_) criterion.limit += criterion.metric == Deciding::kRmse ? rmse : max;
    noise_text_ += "; the operator itself moves it by rmse " + number_text(rmse) + ", max " + number_text(max);
  }

  // The allowed rounding of terms that cancel, in 16-bit floats: as large as it is in float32, by the units. False:
  // no terms cancel, and there is nothing to allow. (A sum that stops growing moves with its inputs like a sum of terms
  // that cancel.)
  bool bound_by_float32(double* rmse, double* max) const {
    if (!context_.in_float32) return true;
    const NoiseNumbers noise;
    const double unit = rounding_.accumulate;
    double rmse_in_float32 = 0, max_in_float32 = 0;
    for (int sample = 1; sample <= noise.samples; ++sample) {
      const at::Tensor other = context_.in_float32(sample);
      if (!other.defined()) return true;
      const TensorDiff in_float32 = diff_tensors(other, golden_, {.nan_equal = true});
      if (!in_float32.structure.empty()) return true;
      rmse_in_float32 = std::max(rmse_in_float32, in_float32.rmse);
      max_in_float32 = std::max(max_in_float32, in_float32.max_abs);
    }
    const double growth = noise.cancelling_units * std::sqrt(static_cast<double>(context_.terms)) * unit;
    if (max_in_float32 <= growth * error_.golden_max) return false;
    *rmse = std::min(*rmse, noise.float32_ratio * rmse_in_float32 * unit_ / unit);
    *max = std::min(*max, noise.float32_ratio * max_in_float32 * unit_ / unit);
    return true;
  }

  TensorVerdict not_finite(int64_t unexpected) {
    if (error_.has_worst) take_worst(error_);
    verdict_.verdict = Verdict::kDiffers;
    verdict_.kind = "values";
    verdict_.deciding = Deciding::kNonfinite;
    verdict_.number = static_cast<double>(unexpected);
    verdict_.thresholds = "NaN and infinities where the CPU or float64 has them";
    verdict_.reason = std::to_string(unexpected) + " elements are NaN or infinite otherwise than on the CPU";
    return verdict_;
  }

  std::string describe(bool alone) const {
    std::string text = alone ? "error against float64: " : "error against float64, the CPU's own allowed for: ";
    for (size_t i = 0; i < criteria_.size(); ++i) {
      text +=
          (i ? ", " : "") + std::string(token_of(criteria_[i].metric).help) + " <= " + number_text(criteria_[i].limit);
    }
    return text + noise_text_;
  }

  // No float64: within some units of the CPU's result.
  TensorVerdict against_reference(const std::string& why) {
    verdict_.method = AppliedMethod::kRelativeToCpu;
    verdict_.diff = diff_tensors(result_, reference_, {.nan_equal = context_.nan_equal});
    const TensorDiff& diff = verdict_.diff;
    const bool lacks = diff.nonfinite_mismatches > 0;
    if (lacks && !context_.hands_out) return not_finite(diff.nonfinite_mismatches);
    const double grown = floor_growth(false);
    const double n = static_cast<double>(std::max<int64_t>(1, diff.numel));
    const double units = unit_ > rounding_.accumulate ? kWithoutGoldenFloat16Units : kWithoutGoldenUnits;
    criteria_.push_back(
        {Deciding::kRmse, diff.rmse, ((units / 2 + 1 / std::sqrt(n)) * unit_ + 2 * grown) * diff.golden_rms});
    criteria_.push_back({Deciding::kMaxError, diff.max_abs, (units * unit_ + 2 * grown) * diff.golden_max});
    if (is_open()) allow_noise(reference_, false);
    if (context_.hands_out) verdict_.expected = std::make_shared<Expectation>(expect({reference_}, diff));
    if (lacks) return not_finite(diff.nonfinite_mismatches);
    verdict_.reason = "no float64 run: " + why;
    std::string text = "difference from the CPU: ";
    for (size_t i = 0; i < criteria_.size(); ++i) {
      text +=
          (i ? ", " : "") + std::string(token_of(criteria_[i].metric).help) + " <= " + number_text(criteria_[i].limit);
    }
    return finish(text + noise_text_);
  }

  // The element that decided, with golden's value: the reference's own may be as wrong.
  void take_worst(const TensorDiff& from) {
    verdict_.diff.has_worst = from.has_worst;
    verdict_.diff.worst_index = from.worst_index;
    verdict_.diff.worst_result = from.worst_result;
    verdict_.diff.worst_golden = from.worst_golden;
  }

  TensorVerdict finish(std::string thresholds) {
    const Criterion& worst =
        *std::max_element(criteria_.begin(), criteria_.end(),
                          [](const Criterion& a, const Criterion& b) { return a.share() < b.share(); });
    verdict_.deciding = worst.metric;
    verdict_.number = worst.number;
    verdict_.limit = worst.limit;
    verdict_.thresholds = std::move(thresholds);
    if (any_broken()) {
      verdict_.verdict = Verdict::kDiffers;
      verdict_.kind = "values";
      if (golden_.defined() && worst.metric == Deciding::kMaxUlp) find_worst_by_ulp(result_, golden_, &error_);
      if (golden_.defined()) take_worst(error_);
    }
    verdict_.wide_limit = zeros_agree(golden_.defined() ? error_ : verdict_.diff);
    return verdict_;
  }

  // Of zeros, errors are as large as the values.
  bool zeros_agree(const TensorDiff& diff) const {
    return diff.golden_max > 0 && std::all_of(criteria_.begin(), criteria_.end(), [&](const Criterion& criterion) {
             return (criterion.metric == Deciding::kRmse && criterion.limit >= diff.golden_rms) ||
                    (criterion.metric == Deciding::kMaxError && criterion.limit >= diff.golden_max);
           });
  }

  const at::Tensor& result_;
  const at::Tensor& reference_;
  const JudgeContext& context_;
  TensorDiff error_;                    // against golden_
  at::Tensor golden_;                   // undefined: none was asked for, or there is none
  std::vector<at::Tensor> candidates_;  // of golden; golden_ is the nearest of each element
  const Rounding rounding_;
  const double unit_;  // in which floors count
  const RelativeNumbers numbers_;
  std::vector<Criterion> criteria_;
  std::string noise_text_;
  TensorVerdict verdict_;
};

bool is_16_bit_float(c10::ScalarType dtype) {
  const Rounding rounding = rounding_of(dtype);
  return rounding.unit > rounding.accumulate;
}

AppliedMethod applied(CompareMethod method) {
  switch (method) {
    case CompareMethod::kRelative:
      return AppliedMethod::kRelative;
    case CompareMethod::kAllclose:
      return AppliedMethod::kAllclose;
    case CompareMethod::kBitwise:
      return AppliedMethod::kBitwise;
    case CompareMethod::kUlp:
      return AppliedMethod::kUlp;
    case CompareMethod::kMsprobeQuick:
      return AppliedMethod::kMsprobeQuick;
    default:
      return AppliedMethod::kMsprobeAbsolute;
  }
}

// The other methods look at a single difference: from the CPU's result, or from float64 where that is asked for or all
// there is.
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
    if (verdict_.diff.outside > 0) fail(Deciding::kElements, verdict_.number, 0);
    if (context_.hands_out) verdict_.expected = std::make_shared<Expectation>(expect_exactly(expected_));
    return verdict_;
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
    if (!measure({.ulp_limits = {is_16_bit_float(dtype_) ? kFloat16Ulp : kFloat32Ulp}}, true)) return verdict_;
    const TensorDiff& diff = verdict_.diff;
    const double over = share(diff.over_ulp[0]);
    if (is_16_bit_float(dtype_)) {
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
    const auto& error = is_16_bit_float(dtype_) ? kQuickFloat16Error : kQuickFloat32Error;
    const auto& warning = is_16_bit_float(dtype_) ? kQuickFloat16Warning : kQuickFloat32Warning;
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

Token token_of(Deciding deciding) {
  constexpr std::array<Token, 18> kTokens{{{"", ""},
                                           {"bits", "bits"},
                                           {"nonfinite", "NaN or infinite"},
                                           {"rmse", "rmse"},
                                           {"max_error", "max error"},
                                           {"max_ulp", "max ulp"},
                                           {"elements", "elements outside"},
                                           {"mean_ulp", "mean ULP"},
                                           {"share_over_ulp", "share over 1 ULP"},
                                           {"cosine", "cosine"},
                                           {"max_abs", "max abs"},
                                           {"share_over_relative", "share over the relative limit"},
                                           {"distance", "Kolmogorov-Smirnov distance"},
                                           {"hits", "hits too many or too few"},
                                           {"range", "value outside the range"},
                                           {"dropped", "neither dropped nor scaled"},
                                           {"mean", "distance of the mean"},
                                           {"missing", "missing numbers"}}};
  return kTokens[static_cast<size_t>(deciding)];
}

std::string_view to_string(AppliedMethod method) {
  constexpr std::array<std::string_view, 9> kNames{"",    "relative",      "relative_to_cpu",  "allclose",   "bitwise",
                                                   "ulp", "msprobe-quick", "msprobe-absolute", "statistical"};
  return kNames[static_cast<size_t>(method)];
}

TensorVerdict differs(std::string kind, std::string reason) {
  TensorVerdict verdict;
  verdict.verdict = Verdict::kDiffers;
  verdict.kind = std::move(kind);
  verdict.reason = std::move(reason);
  verdict.diff.bits_equal = false;
  return verdict;
}

TensorVerdict not_judged(Unjudged why, std::string reason) {
  TensorVerdict verdict;
  verdict.verdict = Verdict::kNotJudged;
  verdict.unjudged = why;
  verdict.reason = std::move(reason);
  verdict.diff.bits_equal = false;
  return verdict;
}

TensorVerdict judge(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context) {
  const bool exact = rounding_of(result.scalar_type()).unit == 0;
  CompareMethod method = context.method;
  if (method == CompareMethod::kRelative && context.tolerances &&
      context.tolerances->overridden(context.op, result.scalar_type())) {
    method = CompareMethod::kAllclose;  // who sets a tolerance wants it
  }
  if (exact) method = CompareMethod::kBitwise;
  if (reference.defined()) {
    const auto other = [&](const char* kind, auto got, auto expected) {
      std::string text = std::string(kind) + " ";
      return differs(kind, text + c10::str(got) + ", expected " + c10::str(expected));
    };
    if (result.sizes() != reference.sizes()) return other("shape", result.sizes(), reference.sizes());
    if (result.scalar_type() != reference.scalar_type()) {
      return other("dtype", result.scalar_type(), reference.scalar_type());
    }
    if (result.layout() != reference.layout()) return other("layout", result.layout(), reference.layout());
    if (context.nan_equal && !context.hands_out && same_bits(result, reference)) {
      TensorVerdict same;
      same.method = applied(method);
      same.deciding = Deciding::kBits;
      same.thresholds = "the same bits as the CPU's";
      same.diff.numel = result.numel();
      return same;
    }
  }
  if (method == CompareMethod::kRelative) return Relative(result, reference, context).judge();
  return ByDifference(result, reference, context).judge(method);
}

}  // namespace op_tools
