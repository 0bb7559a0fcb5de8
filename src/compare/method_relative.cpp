#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "compare/judge_methods.h"

namespace op_tools {
namespace {

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
  static constexpr double kRoundingAlone = 16;
  static constexpr double kLostNumbers = 64;  // smallest numbers of the dtype, added up in an element

  // As long as a criterion is broken.
  void widen_limits(const at::Tensor& golden, const TensorDiff& error, const TensorDiff& reference_error, bool alone) {
    if (is_open() && context_.rounded_inside) allow_rounded_inside(alone);
    if (is_open() && context_.in_autocast_dtype) allow_autocast(golden, error, reference_error, alone);
    // A CPU result that is golden, rounded once, leaves no doubt about the right result. Not of sums: the CPU adds up
    // in float64 in places (var_mean), where other devices do not.
    const bool rounds_once = context_.reduced == 1 && !context_.rounds_in_steps && is_golden_finer();
    const bool exact = !alone && rounds_once && reference_error.max_ulp <= 0.5 && error.numel >= kDoubtless;
    if (is_open() && !exact) allow_noise(golden, alone);
    if (is_open() && !exact && (unit_ <= rounding_.accumulate || context_.perturbs_16_bits)) allow_own_noise(alone);
    if (is_open() && !exact && !alone && unit_ > rounding_.accumulate) allow_rounding_of_float32();
    if (is_open() && alone && context_.may_be_equal_terms && !is_16_bits()) allow_equal_terms();
  }

  // In float64 golden is the CPU's own result, and rounds on the way as it does: log(1 + x) of a small x.
  bool is_golden_finer() const { return rounding_of(golden_.scalar_type()).unit < rounding_.unit; }

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
    if (alone || !context_.by_ulp || !is_golden_finer() || unit_ > rounding_.unit) return;
    if (reference.max_ulp > kElementwiseUlp) return;
    criteria_.push_back({Deciding::kMaxUlp, error.max_ulp,
                         numbers_.ulp_ratio * reference.max_ulp + numbers_.ulp_floor + 4 * grown / rounding_.unit});
  }

  bool any_broken() const {
    return std::any_of(criteria_.begin(), criteria_.end(), [](const Criterion& one) { return one.broken(); });
  }

  // The rounding of such numbers in the dtype of sums. Elements below it have no relative precision.
  void allow_rounded_inside(bool alone) {
    const double size = context_.rounded_inside();
    const double lost = rounding_.accumulate * std::sqrt(static_cast<double>(context_.rounded_terms));
    const double unit = numbers_.max_floor * rounding_.accumulate + std::max(floor_growth(alone), lost);
    for (Criterion& criterion : criteria_) criterion.limit += (alone ? kAloneFactor : 1) * unit * size;
    if (!is_16_bits()) std::erase_if(criteria_, [](const Criterion& one) { return one.metric == Deciding::kMaxUlp; });
    noise_text_ = "; numbers of about " + number_text(size) + " are rounded on the way";
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
    const double ulp_ratio = noise.ulp_ratio + noise.ulp_growth * std::sqrt(static_cast<double>(context_.reduced));
    for (Criterion& criterion : criteria_) {
      criterion.limit += times * (criterion.metric == Deciding::kRmse       ? noise.rmse_ratio * rmse
                                  : criterion.metric == Deciding::kMaxError ? noise.max_ratio * max
                                                                            : ulp_ratio * ulp);
    }
    noise_text_ =
        "; inputs changed by their rounding move it by rmse " + number_text(rmse) + ", max " + number_text(max);
  }

  // The device's autocast may round where the CPU's does not, at most everywhere. On the CPU alone it is the same
  // kernel, whose fault would excuse itself: it may lose no more than numbers below the smallest of the dtype
  // (float16).
  void allow_autocast(const at::Tensor& golden, const TensorDiff& error, TensorDiff reference, bool alone) {
    const at::Tensor rounded = context_.in_autocast_dtype();
    if (!rounded.defined()) return;
    TensorDiff most = diff_tensors(rounded, golden, {.nan_equal = true});
    if (!most.structure.empty()) return;
    if (alone) {
      const double lost = kLostNumbers * context_.autocast.least * context_.autocast.unit;
      most.rmse = std::min(most.rmse, lost);
      most.max_abs = std::min(most.max_abs, lost);
    }
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
    // Numbers of float32 may be none of the dtype of autocast: GradScaler's first steps overflow in float16.
    const bool overflows = context_.autocast.most < rounding_of(at::kFloat).most;
    if (context_.in_autocast_dtype && (!alone || overflows)) runs.as_result.push_back(context_.in_autocast_dtype());
    // Alone it is the same kernel, which counts only where it has to overflow: 0 * inf in the gradient of exp(100).
    if (alone && context_.overflowed && context_.overflowed()) runs.as_result.push_back(context_.rerun_perturbed(0));
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
    double rmse = 0, max = 0, ulp = 0;
    for (int sample = 1; sample <= noise.samples; ++sample) {
      const at::Tensor other = context_.rerun_perturbed(sample);
      if (!other.defined()) return;
      const TensorDiff moved = diff_tensors(other, again, {.nan_equal = true});
      if (!moved.structure.empty()) return;
      rmse = std::max(rmse, moved.rmse);
      max = std::max(max, moved.max_abs);
      ulp = std::max(ulp, moved.max_ulp);
    }
    const double grown = growth_in_order(noise, alone);
    rmse = std::min(std::max(grown, noise.own_rmse_ratio) * rmse, context_.own_noise_share * error_.golden_rms);
    max *= std::max(grown, noise.own_max_ratio);
    ulp *= std::max(grown, noise.own_max_ratio);
    if (is_16_bits() && !bound_by_float32(&rmse, &max)) return;
    for (Criterion& criterion : criteria_) {
      criterion.limit += criterion.metric == Deciding::kRmse       ? rmse
                         : criterion.metric == Deciding::kMaxError ? max
                                                                   : ulp;
    }
    noise_text_ += "; the operator itself moves it by rmse " + number_text(rmse) + ", max " + number_text(max);
  }

  // Small elements of a 16-bit result that float32 on the way does not tell better: log_softmax of a row with a single
  // likely class.
  void allow_rounding_of_float32() {
    const auto by_ulp = std::find_if(criteria_.begin(), criteria_.end(),
                                     [](const Criterion& criterion) { return criterion.metric == Deciding::kMaxUlp; });
    if (by_ulp == criteria_.end() || !context_.in_float32) return;
    const std::optional<Most> in_float32 = error_in_float32();
    if (!in_float32) return;
    by_ulp->limit += NoiseNumbers().float32_ratio * in_float32->ulp * rounding_.accumulate / rounding_.unit;
  }

  struct Most {
    double rmse = 0, max = 0, ulp = 0;
  };
  // The largest error of the kernel in float32, from changed inputs; nullopt: some run has no such result.
  std::optional<Most> error_in_float32() const {
    Most most;
    for (int sample = 1; sample <= NoiseNumbers().samples; ++sample) {
      const at::Tensor other = context_.in_float32(sample);
      if (!other.defined()) return std::nullopt;
      const TensorDiff error = diff_tensors(other, golden_, {.nan_equal = true});
      if (!error.structure.empty()) return std::nullopt;
      most = {std::max(most.rmse, error.rmse), std::max(most.max, error.max_abs), std::max(most.ulp, error.max_ulp)};
    }
    return most;
  }

  // Of the rounding that the kernel's own noise shows. Other devices add in pieces, as their thousands of threads do.
  double growth_in_order(const NoiseNumbers& noise, bool alone) const {
    const double n = summed_in_order();
    if (alone) return std::min(noise.in_order_growth * std::sqrt(n), noise.in_order_share * n);
    return context_.rounds_inside ? noise.graph_in_order_growth * std::sqrt(n) : 1;
  }

  double summed_in_order() const { return context_.in_order ? static_cast<double>(context_.in_order()) : 1; }

  // Their rounding is no noise: the same in each run.
  void allow_equal_terms() {
    const double share = NoiseNumbers().equal_terms_share * summed_in_order() * unit_;
    for (Criterion& criterion : criteria_) {
      if (criterion.metric == Deciding::kRmse) criterion.limit += share * error_.golden_rms;
      if (criterion.metric == Deciding::kMaxError) criterion.limit += share * error_.golden_max;
    }
    noise_text_ += "; the sum of equal terms, one after the other, by " + number_text(share) + " of its size";
  }

  // The allowed rounding of terms that cancel, in 16-bit floats: as large as it is in float32, by the units. False:
  // no terms cancel, and there is nothing to allow. (A sum that stops growing moves with its inputs like a sum of terms
  // that cancel.)
  bool bound_by_float32(double* rmse, double* max) const {
    if (!context_.in_float32) return true;
    const NoiseNumbers noise;
    const double unit = rounding_.accumulate;
    const std::optional<Most> in_float32 = error_in_float32();
    if (!in_float32) return true;
    const double growth = noise.cancelling_units * std::sqrt(static_cast<double>(context_.terms)) * unit;
    if (in_float32->max <= growth * error_.golden_max) return false;
    *rmse = std::min(*rmse, noise.float32_ratio * in_float32->rmse * unit_ / unit);
    *max = std::min(*max, noise.float32_ratio * in_float32->max * unit_ / unit);
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
    // Where golden is zero and the CPU's result is not, its size is the CPU's: what is left of a rounding which float64
    // does not have (x - x.bfloat16().float() of a graph, whose dtypes become float64).
    const bool has_size = golden_.defined() && error_.golden_max > 0;
    verdict_.wide_limit = zeros_agree(has_size ? error_ : verdict_.diff);
    if (verdict_.wide_limit && verdict_.verdict == Verdict::kAgrees && is_rounding_alone()) {
      return not_judged(Unjudged::kUndetermined, "it is rounding alone: in float64 it is " +
                                                     number_text(error_.golden_max) + " at most, on the CPU " +
                                                     number_text(verdict_.diff.golden_max));
    }
    return verdict_;
  }

  // Of a compiled graph, in which a compiler may leave roundings out.
  bool is_rounding_alone() const {
    return context_.rounds_inside && !context_.hands_out && golden_.defined() && reference_.defined() &&
           verdict_.diff.golden_max > kRoundingAlone * error_.golden_max;
  }

  // Of zeros, errors are as large as the values.
  bool zeros_agree(const TensorDiff& diff) const {
    return diff.golden_max > 0 && std::all_of(criteria_.begin(), criteria_.end(), [&](const Criterion& criterion) {
             return (criterion.metric == Deciding::kRmse && criterion.limit >= diff.golden_rms) ||
                    (criterion.metric == Deciding::kMaxError && criterion.limit >= diff.golden_max) ||
                    (criterion.metric == Deciding::kMaxUlp && criterion.limit * rounding_.unit >= 1);
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

}  // namespace

TensorVerdict judge_relative(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context) {
  return Relative(result, reference, context).judge();
}

}  // namespace op_tools
