#include "compare/result_judge.h"

#include <ATen/ops/where_ops.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "compare/open_results.h"
#include "hooks/op_traits.h"
#include "tensor/nonfinite_numbers.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// Float32 results of cuDNN's recurrent networks are off by up to twice the limit of exact kernels (an H200,
// cuDNN 9.19).
constexpr double kApproximation = 4;

}  // namespace

// On the CPU alone it is unknown in which of its inputs' dtypes an operator computes. A gradient under autocast may be
// a sum over a single cast of a weight or over several, depending on the program's earlier casts.
double ResultJudge::coarser_unit(c10::ScalarType dtype, Subject subject) const {
  const double own = rounding_of(dtype).unit;
  double unit = 0;
  if (facts_.device.autocast && (facts_.device.alone || subject == Subject::kGradient))
    unit = rounding_of(*facts_.device.autocast).unit;
  if (facts_.device.tf32 && dtype == at::kFloat) unit = std::max(unit, tf32_unit());
  if (facts_.device.approximated && dtype == at::kFloat) unit = std::max(unit, kApproximation * own);
  // The gradient of a normalisation is a remainder of products whose two factors are as exact as its inputs.
  const bool is_remainder = facts_.pass.in_backward && has_trait(base_name(facts_.name), OpTrait::kNormalizes);
  if (facts_.device.alone || is_remainder) {
    for (const at::Tensor& input : facts_.before) {
      if (input.defined()) unit = std::max(unit, (is_remainder ? 2 : 1) * rounding_of(input.scalar_type()).unit);
    }
  }
  return unit > own ? unit : 0;
}

// Is there NaN among inputs that the result may be made of element by element?
bool ResultJudge::has_nan_for(const at::Tensor& result) {
  if (result.layout() != at::kStrided || rounding_of(result.scalar_type()).unit == 0) return false;
  if (nans_.size() < facts_.before.size()) nans_.resize(facts_.before.size());
  const c10::InferenceMode no_autograd;
  bool has_nan = false;
  for (size_t i = 0; i < facts_.before.size(); ++i) {
    const at::Tensor& input = facts_.before[i];
    if (!input.defined() || input.layout() != at::kStrided || input.sizes() != result.sizes()) continue;
    const c10::ScalarType dtype = input.scalar_type();
    const bool has_sum = !c10::isFloat8Type(dtype) && dtype != c10::ScalarType::ComplexHalf;
    if (rounding_of(dtype).unit == 0 || !has_sum) continue;
    if (!nans_[i]) {
      const at::Tensor reals = dense_reals(on_cpu(input));
      nans_[i] = has_nonfinite(reals) && reals.isnan().any().item<bool>();
    }
    has_nan = has_nan || *nans_[i];
  }
  return has_nan;
}

// The runs that judge() may ask for. `pick` must give an undefined tensor for runs that did not return.
JudgeContext ResultJudge::context_of(const at::Tensor& observed, const Pick& pick, Subject subject) {
  JudgeContext context;
  context.op = facts_.name;
  context.method = facts_.options.method;
  context.tolerances = facts_.options.tolerances;
  context.nan_equal = facts_.options.nan_equal;
  context.coarser_unit = coarser_unit(observed.scalar_type(), subject);
  const std::string_view base = base_name(facts_.name);
  // Autocast has other lists on the CPU: there, a sum may be accumulated in float32 that the device adds in bfloat16.
  // A sum of terms that cancel has no relative precision, however exact the CPU's happens to be. In 16 bits a device
  // may round on the way what the CPU keeps in float32: a product before its bias is added, a mean before it is taken
  // off, the factors of a gradient's formula, gradients that meet in the same place.
  const Rounding rounding = rounding_of(observed.scalar_type());
  const bool is_gradient = subject == Subject::kGradient || facts_.pass.in_backward;
  const bool takes_mean_off = has_trait(base, OpTrait::kNormalizes) && !has_trait(base, OpTrait::kExponentiates);
  const bool may_cancel =
      has_trait(base, OpTrait::kMixesElements) || (is_gradient && takes_mean_off) ||
      (rounding.accumulates_wider() && (is_gradient || takes_mean_off || has_trait(base, OpTrait::kSumsProducts)));
  context.by_ulp = !facts_.device.autocast && !may_cancel;
  context.reduced = reduced_elements(base, facts_.before, observed);
  context.terms = context.reduced;
  for (const at::Tensor& input : facts_.before) {
    if (input.defined() && c10::isIntegralType(input.scalar_type(), false)) {
      context.terms = std::max(context.terms, input.numel());  // indices
    }
  }
  context.in_order = [this, base, subject, terms = context.terms, out = std::max<int64_t>(1, observed.numel())] {
    int64_t most = std::max(terms, summed_inside(base));
    if (subject != Subject::kGradient) return most;
    // The gradients that arrive are as large as the results.
    for (const at::Tensor& result : flatten_tensors(reruns_.variant({RunVariant::Kind::kFloat64}).result)) {
      if (result.defined()) most = std::max(most, result.numel() / out);
    }
    return most;
  };
  if (has_trait(base, OpTrait::kRoundsNearOne)) {
    context.rounded_inside = [this, observed, pick, subject] { return rounded_inside(observed, pick, subject); };
    context.rounded_terms = rounded_terms(observed, subject);
  }
  context.may_be_equal_terms = is_gradient && has_trait(base, OpTrait::kSumsProducts);
  if (!facts_.options.golden || facts_.random.drawn) return context;
  if (const OpFamily* const family = family_of(base, OpTrait::kStepsByDtype)) {
    context.golden = [family](std::string* why) {
      *why = family->why;
      return at::Tensor();
    };
    return context;
  }
  context.golden = [this, pick](std::string* why) {
    const RunOutcome& run = reruns_.variant({RunVariant::Kind::kFloat64});
    if (!run.returned()) *why = run.impossible.empty() ? "it raises: " + run.raised : run.impossible;
    return pick(run);
  };
  context.perturbed = [this, pick](int sample, bool coarse) {
    return pick(reruns_.variant({RunVariant::Kind::kFloat64Perturbed, sample, coarse}));
  };
  context.float32_scalars = [this, pick] { return pick(reruns_.variant({RunVariant::Kind::kFloat32Scalars})); };
  context.rerun_perturbed = [this, pick](int sample) {
    if (sample == 0) return pick(reruns_.reference());
    return pick(reruns_.variant({RunVariant::Kind::kPerturbed, sample}));
  };
  context.in_float32 = [this, pick](int sample) {
    return pick(reruns_.variant({RunVariant::Kind::kFloat32Perturbed, sample}));
  };
  if (subject != Subject::kGradient && has_trait(base, OpTrait::kDistance)) context.own_noise_share = kDistanceNoise;
  context.rounds_in_steps = is_gradient || facts_.pass.graph.adds_product || has_trait(base, OpTrait::kAddsProduct) ||
                            find_key(facts_.kwargs, "alpha") != nullptr;
  context.rounded_once = subject != Subject::kGradient && rounds_to_integers(base, facts_.kwargs);
  context.copies = !facts_.has_no_reference() && subject == Subject::kResult && needs_no_rounding(observed);
  if (has_nan_for(observed)) {
    context.golden_apart = [this, pick] { return pick(reruns_.variant({RunVariant::Kind::kFloat64Gaps})); };
  }
  context.perturbs_16_bits = facts_.has_no_reference() && is_gradient;
  context.rounds_inside = facts_.pass.of_graph;
  if (facts_.device.autocast) {
    context.in_autocast_dtype = [this, pick] { return pick(reruns_.variant({RunVariant::Kind::kAutocastDtype})); };
    context.autocast = rounding_of(*facts_.device.autocast);
  }
  if (subject == Subject::kGradient && facts_.device.alone) {
    context.overflowed = [this, dtype = observed.scalar_type()] { return overflows(dtype); };
  }
  return context;
}

// Of operators that round near one (kRoundsNearOne): one, and in a gradient what arrives at a row of the input. A loss
// gives each row a share of its own, by its reduction, weights and ignored rows: a row of equal scores shows it.
double ResultJudge::rounded_inside(const at::Tensor& observed, const Pick& pick, Subject subject) {
  const auto largest = [](const at::Tensor& tensor) {
    const c10::InferenceMode no_autograd;
    if (!tensor.defined() || tensor.numel() == 0 || tensor.layout() != at::kStrided) return 0.0;
    const double size = on_cpu(tensor).to(at::kDouble).abs().max().item<double>();
    return std::isfinite(size) ? size : 0.0;
  };
  const std::string_view base = base_name(facts_.name);
  const int arrives = family_of(base, OpTrait::kRoundsNearOne)->place;
  if (arrives >= 0) return facts_.before.empty() ? 0 : largest(facts_.before[static_cast<size_t>(arrives)]);
  if (subject != Subject::kGradient) return 1;
  const std::vector<at::Tensor>& arriving = reruns_.variant({RunVariant::Kind::kFloat64}).arriving;
  if (arriving.empty() || !arriving[0].defined() || observed.numel() == 0) return 0;
  if (arriving[0].numel() > 1) return largest(arriving[0]);
  return 2 * largest(pick(reruns_.variant({RunVariant::Kind::kFloat64Zeros})));
}

// Is a result, in float64, larger than the largest number of the dtype?
bool ResultJudge::overflows(c10::ScalarType dtype) {
  const c10::InferenceMode no_autograd;
  const std::vector<at::Tensor> results = flatten_tensors(reruns_.variant({RunVariant::Kind::kFloat64}).result);
  return std::any_of(results.begin(), results.end(), [&](const at::Tensor& result) {
    if (!result.defined() || result.layout() != at::kStrided || rounding_of(result.scalar_type()).unit == 0)
      return false;
    const at::Tensor sizes = result.abs();
    return sizes.isfinite().logical_and(sizes.gt(rounding_of(dtype).most)).any().item<bool>();
  });
}

// The classes: the dimension that the call names (log_softmax), else that of a loss.
int64_t ResultJudge::rounded_terms(const at::Tensor& observed, Subject subject) const {
  const bool has_scores = subject != Subject::kGradient && !facts_.before.empty() && facts_.before[0].defined();
  const at::Tensor& scores = has_scores ? facts_.before[0] : observed;
  if (scores.dim() == 0) return 1;
  int64_t dim = std::min<int64_t>(1, scores.dim() - 1);
  if (has_trait(base_name(facts_.name), OpTrait::kNormalizes)) {
    const Value* named = find_key(facts_.kwargs, "dim");
    const auto* number = named ? named->get_if<int64_t>() : nullptr;
    const Values* args = sequence_items(facts_.args);
    for (size_t i = 0; args && !number && i < args->size(); ++i) number = (*args)[i].get_if<int64_t>();
    if (number) dim = *number < 0 ? *number + scores.dim() : *number;
  }
  return dim >= 0 && dim < scores.dim() ? scores.size(dim) : 1;
}

// Sums whose length the sizes of inputs and result do not tell.
int64_t ResultJudge::summed_inside(std::string_view base) const {
  int64_t most = 1;
  for (const at::Tensor& input : facts_.before) {
    if (!input.defined() || rounding_of(input.scalar_type()).unit == 0) continue;
    if (facts_.pass.of_graph) most = std::max(most, input.numel());
    if (!has_trait(base, OpTrait::kNormalizesBatch) || input.dim() < 2) continue;
    most = std::max(most, input.numel() / std::max<int64_t>(1, input.size(1)));
  }
  return most;
}

// Inputs of other dtypes are converted; an embedding with max_norm writes its table first.
bool ResultJudge::needs_no_rounding(const at::Tensor& observed) const {
  const std::string_view base = base_name(facts_.name);
  if (facts_.device.autocast) return false;
  const auto is_other_dtype = [&](const at::Tensor& input) {
    return input.defined() && rounding_of(input.scalar_type()).unit > 0 &&
           input.scalar_type() != observed.scalar_type();
  };
  if (std::any_of(facts_.before.begin(), facts_.before.end(), is_other_dtype)) return false;
  if (has_trait(base, OpTrait::kNeedsNoRounding)) {
    return !observed.is_complex() && find_key(facts_.kwargs, "decimals") == nullptr;  // those are multiplied
  }
  const std::vector<bool>& written = observed_.written;
  return has_trait(base, OpTrait::kSelects) &&
         std::none_of(written.begin(), written.end(), [](bool is_written) { return is_written; });
}

// Integers (or booleans) made of nothing but integers: float64 would repeat the CPU's work.
bool ResultJudge::is_of_integers(const at::Tensor& observed) const {
  const auto is_inexact = [](const at::Tensor& tensor) {
    return tensor.defined() && rounding_of(tensor.scalar_type()).unit > 0;
  };
  return !is_inexact(observed) && !facts_.before.empty() && observed.layout() == at::kStrided &&
         std::none_of(facts_.before.begin(), facts_.before.end(), is_inexact);
}

// Must be the same in a second run, and where the call has integers of fewer bits, in more bits: as far as 32 and 64
// bits agree (an operator may look at the bits themselves) and the dtype has the number (narrow integers wrap).
TensorVerdict ResultJudge::judge_integers(const at::Tensor& observed, const Pick& pick) {
  TensorVerdict judgement;
  judgement.method = AppliedMethod::kBitwise;
  judgement.deciding = Deciding::kElements;
  judgement.thresholds = "every element the same in a second run, and in 64 bits";
  const auto differs_from = [&](const at::Tensor& expected, const char* reason) {
    judgement.diff = diff_tensors(observed, expected);
    if (!judgement.diff.structure.empty() || judgement.diff.outside == 0) return false;
    judgement.verdict = Verdict::kDiffers;
    judgement.kind = "values";
    judgement.number = static_cast<double>(judgement.diff.outside);
    judgement.reason = reason;
    return true;
  };
  const at::Tensor again = pick(reruns_.reference());
  if (!again.defined()) return not_judged(Unjudged::kNoReference, "it cannot be run again");
  if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>(expect_exactly(again));
  if (differs_from(again, "a second run gives other integers")) return judgement;
  const auto in_bits = [&](RunVariant::Kind kind) {
    const at::Tensor other = pick(reruns_.variant({kind}));
    const bool fits =
        other.defined() && other.sizes() == observed.sizes() &&
        c10::isIntegralType(other.scalar_type(), true) == c10::isIntegralType(observed.scalar_type(), true);
    return fits ? other.to(at::kLong) : at::Tensor();
  };
  if (!has_integers_below(sizeof(int64_t))) return judgement;
  const at::Tensor wide = in_bits(RunVariant::Kind::kWideIntegers);
  if (!wide.defined()) return judgement;
  at::Tensor middle = has_integers_below(sizeof(int32_t)) ? in_bits(RunVariant::Kind::kMiddleIntegers) : wide;
  if (!middle.defined()) middle = wide;
  const at::Tensor fits = wide.to(observed.scalar_type()).to(at::kLong).eq(wide);
  const at::Tensor known = wide.eq(middle).logical_and(fits);
  const at::Tensor expected =
      at::_ops::where_self::call(known, wide, observed.to(at::kLong)).to(observed.scalar_type());
  if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>(expect_exactly(expected));
  differs_from(expected, "in 64 bits the operator gives other integers");
  return judgement;
}

bool ResultJudge::has_integers_below(size_t bytes) const {
  return std::any_of(facts_.before.begin(), facts_.before.end(), [bytes](const at::Tensor& tensor) {
    return tensor.defined() && c10::isIntegralType(tensor.scalar_type(), false) && tensor.itemsize() < bytes;
  });
}

// The result shows memory of the inputs: a run in the same dtypes says whether it shows the right elements.
std::optional<TensorVerdict> ResultJudge::judge_shown(const at::Tensor& observed, const Pick& pick,
                                                      JudgeContext context) {
  context.golden = nullptr;
  context.perturbed = nullptr;
  context.float32_scalars = nullptr;
  const at::Tensor shown = pick(reruns_.reference());
  if (!shown.defined() || shown.sizes() != observed.sizes()) return std::nullopt;
  TensorVerdict judgement = judge(observed, shown, context);
  if (judgement.deciding != Deciding::kBits) return std::nullopt;
  if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>(expect_exactly(shown));
  return judgement;
}

TensorVerdict ResultJudge::judge_tensor(const at::Tensor& observed, const Pick& pick, Subject subject) {
  const JudgeContext context = context_of(observed, pick, subject);
  const bool alone = facts_.has_no_reference();
  if (alone && subject == Subject::kShownInputs) {
    if (auto judgement = judge_shown(observed, pick, context)) return *judgement;
  }
  if (alone && is_of_integers(observed)) return judge_integers(observed, pick);
  at::Tensor reference;
  if (!alone) {
    reference = pick(reruns_.reference());
    if (!reference.defined()) return not_judged(Unjudged::kNoReference, "the CPU gives nothing to compare with");
    const auto dtype = observed.scalar_type();
    if (facts_.device.autocast && reference.scalar_type() != dtype && rounding_of(dtype).unit > 0 &&
        rounding_of(reference.scalar_type()).unit > 0) {
      reference = reference.to(dtype);
    }
  }
  // A result on a device is copied only where its bits are not the CPU's.
  at::Tensor result = observed;
  if (!observed.is_cpu()) {
    result = reference.defined() && same_bits(observed, reference) ? reference : on_cpu(observed);
  }
  TensorVerdict judgement = judge(result, reference, context);
  const bool is_final = judgement.verdict != Verdict::kDiffers || judgement.kind != "values";
  if (!is_final) judgement = reconsidered(std::move(judgement), result, reference, pick, context, subject);
  const bool is_excused =
      !is_final && judgement.verdict != Verdict::kDiffers && !is_sign_ambiguous(base_name(facts_.name));
  if (facts_.options.hands_out && !is_excused) judgement.expected = expected_of(result, reference, context, subject);
  return judgement;
}

// Of the CPU's own result where there is one: the device's result says nothing of the right result.
std::shared_ptr<Expectation> ResultJudge::expected_of(const at::Tensor& observed, const at::Tensor& reference,
                                                      JudgeContext context, Subject subject) const {
  const std::string_view base = base_name(facts_.name);
  if (returns_unordered(base) || (is_sign_ambiguous(base) && subject == Subject::kGradient) || !context.nan_equal)
    return nullptr;
  context.hands_out = true;
  const at::Tensor& judged = reference.defined() ? reference : observed;
  const bool only_sizes = is_sign_ambiguous(base) && rounding_of(observed.scalar_type()).unit > 0;
  auto expected = (only_sizes ? judge_sizes(judged, reference, context) : judge(judged, reference, context)).expected;
  if (!expected) return nullptr;
  expected->only_sizes = only_sizes;
  expected->dtype = facts_.device.autocast ? c10::ScalarType::Undefined : judged.scalar_type();
  return expected;
}

// Values that differ although the operator may be right: it leaves them open.
TensorVerdict ResultJudge::reconsidered(TensorVerdict judgement, const at::Tensor& result, const at::Tensor& reference,
                                        const Pick& pick, const JudgeContext& context, Subject subject) {
  const bool alone = facts_.has_no_reference();
  const std::string_view base = base_name(facts_.name);
  if (returns_unordered(base)) {
    if (subject == Subject::kGradient) return not_judged(Unjudged::kUndetermined, "it depends on an undefined order");
    const Value& expected = alone ? Value() : reruns_.reference().result;
    return judge_set(facts_, std::move(judgement), result, reference, flatten_tensors(observed_.result),
                     flatten_tensors(expected));
  }
  const bool exact = rounding_of(result.scalar_type()).unit == 0;
  const Value* const stable = find_key(facts_.kwargs, "stable");
  const bool keeps_order = stable && stable->get_if<bool>() && *stable->get_if<bool>();
  if (exact && returns_indices(base) && !keeps_order && !facts_.before.empty() &&
      name_same_elements(facts_, result, alone ? pick(reruns_.variant({RunVariant::Kind::kFloat64})) : reference)) {
    return agreeing(std::move(judgement), "other indices, of equal elements");
  }
  if (!alone &&
      are_same_in_other_order(facts_, flatten_tensors(observed_.result), flatten_tensors(reruns_.reference().result))) {
    return agreeing(std::move(judgement), "the same elements in another order");
  }
  if (exact && alone)
    return not_judged(Unjudged::kUndetermined, "integers made of rounded values: float64 decides otherwise");
  if (!is_sign_ambiguous(base)) return judgement;
  if (subject == Subject::kGradient)
    return not_judged(Unjudged::kUndetermined, "it depends on signs that a decomposition leaves open");
  return judge_factor(facts_, result, reference, context, flatten_tensors(observed_.result));
}

}  // namespace op_tools
