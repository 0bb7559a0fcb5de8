#include "compare/call_judge.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/sort_ops.h>
#include <ATen/ops/where_ops.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "compare/decomposition.h"
#include "compare/distribution_test.h"
#include "hooks/error_origin.h"
#include "hooks/op_traits.h"
#include "tensor/nonfinite_numbers.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// Float32 results of cuDNN's recurrent networks are off by up to twice the limit of exact kernels (an H200,
// cuDNN 9.19).
constexpr double kApproximation = 4;

void collect_leaves(const Value& value, Values* leaves) {
  if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) collect_leaves(item, leaves);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) collect_leaves(item, leaves);
  } else if (const auto* size = value.get_if<Size>()) {
    leaves->insert(leaves->end(), size->sizes.begin(), size->sizes.end());
  } else {
    leaves->push_back(value);
  }
}

// A number as a tensor, so that it is judged like a tensor. A Python float is mostly some float32's value.
at::Tensor number_tensor(const Value& value) {
  if (const auto* number = value.get_if<bool>()) return c10::scalar_to_tensor(*number);
  if (const auto* number = value.get_if<int64_t>()) return c10::scalar_to_tensor(*number);
  if (const auto* number = value.get_if<double>()) return c10::scalar_to_tensor(*number).to(at::kFloat);
  if (const auto* number = value.get_if<c10::complex<double>>()) return c10::scalar_to_tensor(*number);
  return {};
}

at::Tensor tensor_of(const Value& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return tensor->detach();
  return number_tensor(value);
}

at::Tensor leaf_tensor(const RunOutcome& run, size_t leaf) {
  if (!run.returned()) return {};
  const Values leaves = leaves_of(run.result);
  return leaf < leaves.size() ? tensor_of(leaves[leaf]) : at::Tensor();
}

std::string text_of(Part part, std::optional<size_t> index) {
  switch (part) {
    case Part::kOutput:
      return index ? std::to_string(*index) + "th" : "";
    case Part::kInput:
      return "input " + std::to_string(index.value_or(0)) + " after the call";
    case Part::kGradient:
      return index ? std::to_string(*index) + "th input grad" : "input grads";
    default:
      return "";
  }
}

// Strides of dimensions with a single element say nothing, and none do where there is no element.
bool same_order(const std::vector<int64_t>& a, const std::vector<int64_t>& b, at::IntArrayRef sizes) {
  if (a.size() != b.size() || a.size() != sizes.size()) return a.size() == b.size();
  if (c10::multiply_integers(sizes) == 0) return true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

// The strides of a copy of a tensor (`torch.preserve_format`).
std::vector<int64_t> strides_of_copy(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  return at::infer_dense_strides(tensor.sizes(), tensor.strides());
}

std::string list_text(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
  return text + "]";
}

// Backward of an operator with scratch memory among its results uses that memory, an input now, as it likes.
bool is_scratch(std::string_view base, const at::Tensor& input) {
  return has_trait(base, OpTrait::kTakesWorkspace) && input.scalar_type() == at::kByte;
}

bool all_zero(const at::Tensor& tensor) {
  const TensorDiff diff = diff_tensors(tensor, tensor);
  return diff.golden_max == 0 && diff.golden.nan == 0 && diff.golden.pos_inf == 0 && diff.golden.neg_inf == 0;
}

}  // namespace

std::string_view to_string(Part part) {
  constexpr std::array<std::string_view, 4> kNames{"call", "output", "input", "gradient"};
  return kNames[static_cast<size_t>(part)];
}

Values leaves_of(const Value& value) {
  Values leaves;
  collect_leaves(value, &leaves);
  return leaves;
}

const RunOutcome& CallJudge::reference_run() {
  if (!reference_) reference_ = again_({RunVariant::Kind::kReference});
  return *reference_;
}

const RunOutcome& CallJudge::other_run(const RunVariant& variant) {
  const std::tuple key(variant.kind, variant.sample, variant.coarse);
  const auto known = others_.find(key);
  return known != others_.end() ? known->second : others_.emplace(key, again_(variant)).first->second;
}

void CallJudge::add(Part part, std::optional<size_t> index, TensorVerdict judgement, const at::Tensor& result) {
  Check& check = checks_.emplace_back();
  check.subject = text_of(part, index);
  check.part = part;
  check.index = index;
  check.judgement = std::move(judgement);
  if (!facts_.memory.overlapping.empty() && check.judgement.kind == "values") {
    check.judgement.reason = "the call reads memory that it writes: what comes out depends on the order of the kernel";
  }
  if (result.defined()) check.form = TensorMeta::of(result);
}

// On the CPU alone it is unknown in which of its inputs' dtypes an operator computes. A gradient under autocast may be
// a sum over a single cast of a weight or over several, depending on the program's earlier casts.
double CallJudge::coarser_unit(c10::ScalarType dtype) const {
  const double own = rounding_of(dtype).unit;
  double unit = 0;
  if (facts_.device.autocast && (facts_.device.alone || backward_)) unit = rounding_of(*facts_.device.autocast).unit;
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

// Has the input the bits that it had before the call?
bool CallJudge::is_unchanged(size_t input) {
  if (unchanged_.size() < facts_.before.size()) unchanged_.resize(facts_.before.size());
  std::optional<bool>& known = unchanged_[input];
  if (!known) known = same_bits(observed_.inputs[input], facts_.before[input]);
  return *known;
}

// Does this tensor of the result show nothing but memory of inputs that the call left alone? Then it may be wrong only
// in which of their elements it shows, and float64 elements are shown by the same code: a run in the same dtypes, which
// shares their memory, says as much.
bool CallJudge::shows_inputs(size_t index) {
  if (index >= observed_.aliases.size() || observed_.aliases[index].empty()) return false;
  if (observed_.inputs.size() != facts_.before.size()) return false;
  for (const int64_t input : observed_.aliases[index]) {
    const auto i = static_cast<size_t>(input);
    if (i >= facts_.before.size() || !observed_.inputs[i].defined() || !facts_.before[i].defined()) return false;
    if (i >= observed_.written.size() || observed_.written[i] || !is_unchanged(i)) return false;
  }
  return true;
}

// Is there NaN among inputs that the result may be made of element by element?
bool CallJudge::has_nan_for(const at::Tensor& result) {
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
JudgeContext CallJudge::context_of(const at::Tensor& observed, const Pick& pick) {
  JudgeContext context;
  context.op = facts_.name;
  context.method = facts_.options.method;
  context.tolerances = facts_.options.tolerances;
  context.nan_equal = facts_.options.nan_equal;
  context.coarser_unit = coarser_unit(observed.scalar_type());
  const std::string_view base = base_name(facts_.name);
  // Autocast has other lists on the CPU: there, a sum may be accumulated in float32 that the device adds in bfloat16.
  // A sum of terms that cancel has no relative precision, however exact the CPU's happens to be. In 16 bits a device
  // may round on the way what the CPU keeps in float32: a product before its bias is added, a mean before it is taken
  // off, the factors of a gradient's formula, gradients that meet in the same place.
  const Rounding rounding = rounding_of(observed.scalar_type());
  const bool is_16_bits = rounding.unit > rounding.accumulate;
  const bool is_gradient = backward_ || facts_.pass.in_backward;
  const bool takes_mean_off = has_trait(base, OpTrait::kNormalizes) && !has_trait(base, OpTrait::kExponentiates);
  const bool may_cancel = has_trait(base, OpTrait::kMixesElements) || (is_gradient && takes_mean_off) ||
                          (is_16_bits && (is_gradient || takes_mean_off || has_trait(base, OpTrait::kSumsProducts)));
  context.by_ulp = !facts_.device.autocast && !may_cancel;
  context.reduced = reduced_elements(base, facts_.before, observed);
  context.terms = context.reduced;
  for (const at::Tensor& input : facts_.before) {
    if (input.defined() && c10::isIntegralType(input.scalar_type(), false)) {
      context.terms = std::max(context.terms, input.numel());  // indices
    }
  }
  if (!facts_.options.golden || facts_.random.drawn) return context;
  if (const OpFamily* const family = family_of(base, OpTrait::kStepsByDtype)) {
    context.golden = [family](std::string* why) {
      *why = family->why;
      return at::Tensor();
    };
    return context;
  }
  context.golden = [this, pick](std::string* why) {
    const RunOutcome& run = other_run({RunVariant::Kind::kFloat64});
    if (!run.returned()) *why = run.impossible.empty() ? "it raises: " + run.raised : run.impossible;
    return pick(run);
  };
  context.perturbed = [this, pick](int sample, bool coarse) {
    return pick(other_run({RunVariant::Kind::kFloat64Perturbed, sample, coarse}));
  };
  context.float32_scalars = [this, pick] { return pick(other_run({RunVariant::Kind::kFloat32Scalars})); };
  context.rerun_perturbed = [this, pick](int sample) {
    if (sample == 0) return pick(reference_run());
    return pick(other_run({RunVariant::Kind::kPerturbed, sample}));
  };
  context.in_float32 = [this, pick](int sample) {
    return pick(other_run({RunVariant::Kind::kFloat32Perturbed, sample}));
  };
  if (!backward_ && has_trait(base, OpTrait::kDistance)) context.own_noise_share = kDistanceNoise;
  context.rounded_once = !backward_ && rounds_to_integers(base, facts_.kwargs);
  if (has_nan_for(observed)) {
    context.golden_apart = [this, pick] { return pick(other_run({RunVariant::Kind::kFloat64Gaps})); };
  }
  context.perturbs_16_bits = facts_.has_no_reference() && (backward_ || facts_.pass.in_backward);
  if (facts_.device.autocast) {
    context.in_autocast_dtype = [this, pick] { return pick(other_run({RunVariant::Kind::kAutocastDtype})); };
  }
  return context;
}

// Integers (or booleans) made of nothing but integers: float64 would repeat the CPU's work.
bool CallJudge::is_of_integers(const at::Tensor& observed) const {
  const auto is_inexact = [](const at::Tensor& tensor) {
    return tensor.defined() && rounding_of(tensor.scalar_type()).unit > 0;
  };
  return !is_inexact(observed) && !facts_.before.empty() && observed.layout() == at::kStrided &&
         std::none_of(facts_.before.begin(), facts_.before.end(), is_inexact);
}

// Must be the same in a second run, and where the call has integers of fewer bits, in more bits: as far as 32 and 64
// bits agree (an operator may look at the bits themselves) and the dtype has the number (narrow integers wrap).
TensorVerdict CallJudge::judge_integers(const at::Tensor& observed, const Pick& pick) {
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
  const at::Tensor again = pick(reference_run());
  if (!again.defined()) return not_judged(Unjudged::kNoReference, "it cannot be run again");
  if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>(expect_exactly(again));
  if (differs_from(again, "a second run gives other integers")) return judgement;
  const auto in_bits = [&](RunVariant::Kind kind) {
    const at::Tensor other = pick(other_run({kind}));
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

bool CallJudge::has_integers_below(size_t bytes) const {
  return std::any_of(facts_.before.begin(), facts_.before.end(), [bytes](const at::Tensor& tensor) {
    return tensor.defined() && c10::isIntegralType(tensor.scalar_type(), false) && tensor.itemsize() < bytes;
  });
}

// The result shows memory of the inputs: a run in the same dtypes says whether it shows the right elements.
std::optional<TensorVerdict> CallJudge::judge_shown(const at::Tensor& observed, const Pick& pick,
                                                    JudgeContext context) {
  context.golden = nullptr;
  context.perturbed = nullptr;
  context.float32_scalars = nullptr;
  const at::Tensor shown = pick(reference_run());
  if (!shown.defined() || shown.sizes() != observed.sizes()) return std::nullopt;
  TensorVerdict judgement = judge(observed, shown, context);
  if (judgement.deciding != Deciding::kBits) return std::nullopt;
  if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>(expect_exactly(shown));
  return judgement;
}

TensorVerdict CallJudge::judge_tensor(const at::Tensor& observed, const Pick& pick, bool shows_inputs) {
  const JudgeContext context = context_of(observed, pick);
  const bool alone = facts_.has_no_reference();
  if (alone && shows_inputs) {
    if (auto judgement = judge_shown(observed, pick, context)) return *judgement;
  }
  if (alone && is_of_integers(observed)) return judge_integers(observed, pick);
  at::Tensor reference;
  if (!alone) {
    reference = pick(reference_run());
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
  if (!is_final) judgement = reconsidered(std::move(judgement), result, reference, pick, context);
  const bool is_excused =
      !is_final && judgement.verdict != Verdict::kDiffers && !is_sign_ambiguous(base_name(facts_.name));
  if (facts_.options.hands_out && !is_excused) judgement.expected = expected_of(result, reference, context);
  return judgement;
}

// Of the CPU's own result where there is one: the device's result says nothing of the right result.
std::shared_ptr<Expectation> CallJudge::expected_of(const at::Tensor& observed, const at::Tensor& reference,
                                                    JudgeContext context) const {
  const std::string_view base = base_name(facts_.name);
  if (returns_unordered(base) || (is_sign_ambiguous(base) && backward_) || !context.nan_equal) return nullptr;
  context.hands_out = true;
  const at::Tensor& subject = reference.defined() ? reference : observed;
  const bool only_sizes = is_sign_ambiguous(base) && rounding_of(observed.scalar_type()).unit > 0;
  auto expected = (only_sizes ? judge_sizes(subject, reference, context) : judge(subject, reference, context)).expected;
  if (!expected) return nullptr;
  expected->only_sizes = only_sizes;
  expected->dtype = facts_.device.autocast ? c10::ScalarType::Undefined : subject.scalar_type();
  return expected;
}

// Values that differ although the operator may be right: it leaves them open.
TensorVerdict CallJudge::reconsidered(TensorVerdict judgement, const at::Tensor& result, const at::Tensor& reference,
                                      const Pick& pick, const JudgeContext& context) {
  const bool alone = facts_.has_no_reference();
  const std::string_view base = base_name(facts_.name);
  if (returns_unordered(base)) return judge_set(std::move(judgement), result, reference);
  const bool exact = rounding_of(result.scalar_type()).unit == 0;
  if (exact && returns_indices(base) &&
      same_elements_named(result, alone ? pick(other_run({RunVariant::Kind::kFloat64})) : reference)) {
    judgement.verdict = Verdict::kAgrees;
    judgement.kind.clear();
    judgement.reason = "other indices, of equal elements";
    return judgement;
  }
  if (exact && alone)
    return not_judged(Unjudged::kUndetermined, "integers made of rounded values: float64 decides otherwise");
  if (is_sign_ambiguous(base)) return judge_sizes(result, reference, context);
  return judgement;
}

namespace {

// The argument `sorted` of unique, which is true where it is left out.
bool asks_for_order(std::string_view base, const Value& args, const Value& kwargs) {
  const Value* sorted = find_key(kwargs, "sorted");
  const Values* const positional = sequence_items(args);
  const size_t place = base == "unique_dim" ? 2 : 1;
  if (!sorted && positional && positional->size() > place) sorted = &(*positional)[place];
  const bool* const asked = sorted ? sorted->get_if<bool>() : nullptr;
  return !asked || *asked;
}

}  // namespace

// unique: the values, and then the places and counts of each, in the order of the values.
TensorVerdict CallJudge::judge_set(TensorVerdict judgement, const at::Tensor& result, const at::Tensor& reference) {
  TensorVerdict open = not_judged(Unjudged::kUndetermined, "the order of its results is not defined");
  // Eigenvalues stand in an order that rounding changes, and gradients depend on it.
  if (!reference.defined() || result.is_complex() || backward_) return open;
  if (asks_for_order(base_name(facts_.name), facts_.args, facts_.kwargs)) return judgement;
  const std::vector<at::Tensor> ours = flatten_tensors(observed_.result);
  const std::vector<at::Tensor> theirs = flatten_tensors(reference_run().result);
  if (ours.empty() || theirs.empty()) return open;
  if (same_bits(ours[0], theirs[0])) return judgement;
  if (!same_bits(result, ours[0])) return open;
  const auto sorted = [](const at::Tensor& tensor) {
    return std::get<0>(at::_ops::sort::call(tensor.detach().reshape({-1}), 0, false));
  };
  if (!same_bits(sorted(result), sorted(reference))) return judgement;
  if (result.dim() > 1) return open;  // rows
  judgement.verdict = Verdict::kAgrees;
  judgement.kind.clear();
  judgement.reason = "the same values in another order";
  return judgement;
}

// Of vectors whose sign (complex: phase) is ambiguous.
TensorVerdict CallJudge::judge_sizes(const at::Tensor& result, const at::Tensor& reference,
                                     JudgeContext context) const {
  if (backward_) return not_judged(Unjudged::kUndetermined, "it depends on signs that a decomposition leaves open");
  const auto sizes_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? at::_ops::abs::call(tensor.detach()) : tensor;
  };
  if (context.golden) {
    context.golden = [golden = context.golden, sizes_of](std::string* why) { return sizes_of(golden(why)); };
    context.perturbed = [perturbed = context.perturbed, sizes_of](int sample, bool coarse) {
      return sizes_of(perturbed(sample, coarse));
    };
    context.float32_scalars = [scalars = context.float32_scalars, sizes_of] { return sizes_of(scalars()); };
    context.in_float32 = [in_float32 = context.in_float32, sizes_of](int sample) {
      return sizes_of(in_float32(sample));
    };
    context.golden_apart = nullptr;
  }
  if (context.rerun_perturbed) {
    context.rerun_perturbed = [rerun = context.rerun_perturbed, sizes_of](int sample) {
      return sizes_of(rerun(sample));
    };
  }
  TensorVerdict judgement = judge(sizes_of(result), sizes_of(reference), context);
  if (judgement.verdict != Verdict::kAgrees) return judgement;
  judgement.reason = "equal up to ambiguous signs";
  const int count = family_of(base_name(facts_.name), OpTrait::kSignAmbiguous)->place;
  const std::vector<at::Tensor> factors = flatten_tensors(observed_.result);
  if (count > 0 && factors.size() == static_cast<size_t>(count) && !facts_.before.empty()) {
    const at::Tensor& input = facts_.before[0];
    // A backward stable algorithm is off by some units times the size of the matrix.
    const double most = 100 * rounding_of(result.scalar_type()).unit *
                        static_cast<double>(input.dim() < 2 ? 1 : std::max(input.size(-1), input.size(-2)));
    const std::optional<double> off = distance_of_product(factors, input);
    if (off && *off > most) {
      judgement.verdict = Verdict::kDiffers;
      judgement.kind = "values";
      judgement.deciding = Deciding::kRmse;
      judgement.number = *off;
      judgement.limit = most;
      judgement.reason = "the product of the factors is not the input";
    }
  }
  return judgement;
}

// Indices along the dimension in which the results are smaller than the input, or differ in nothing: argmax, sort,
// topk.
bool CallJudge::same_elements_named(const at::Tensor& result, const at::Tensor& reference) const {
  if (facts_.before.empty() || !reference.defined() || result.scalar_type() != at::kLong ||
      reference.sizes() != result.sizes()) {
    return false;
  }
  const at::Tensor input = facts_.before[0].detach();
  const auto elements = [&](const at::Tensor& indices, int64_t dim) {
    return at::_ops::gather::call(input, dim, indices, false);
  };
  const auto in_range = [&](const at::Tensor& indices, int64_t size) {
    const at::Tensor flat = indices.contiguous();
    const auto* numbers = flat.const_data_ptr<int64_t>();
    return std::all_of(numbers, numbers + flat.numel(), [&](int64_t i) { return i >= 0 && i < size; });
  };
  if (result.dim() == 0) {
    if (!in_range(result, input.numel())) return false;
    const at::Tensor flat = input.reshape({-1});
    return same_bits(flat[result.item<int64_t>()], flat[reference.item<int64_t>()]);
  }
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    at::Tensor ours = result, theirs = reference;
    if (ours.dim() == input.dim() - 1) {
      ours = ours.unsqueeze(dim);
      theirs = theirs.unsqueeze(dim);
    }
    if (ours.dim() != input.dim()) return false;
    bool fits = true;
    for (int64_t i = 0; i < input.dim(); ++i) fits = fits && (i == dim || ours.size(i) == input.size(i));
    if (!fits || !in_range(ours, input.size(dim)) || !in_range(theirs, input.size(dim))) continue;
    if (same_bits(elements(ours, dim), elements(theirs, dim))) return true;
  }
  return false;
}

// x.cpu() of a tensor that is there gives x itself, where a device gives a copy.
std::vector<int64_t> CallJudge::expected_strides(size_t index) {
  const RunOutcome& reference = reference_run();
  const bool only_there = observed_.aliases[index].empty() && !reference.aliases[index].empty();
  if (!facts_.device.names_device || !only_there) return reference.strides[index];
  return strides_of_copy(flatten_tensors(reference.result)[index]);
}

// Torch's own word on the result's form, without running a kernel: a device that follows it is right, where the
// CPU's kernel does not. Empty: nothing.
std::vector<int64_t> CallJudge::strides_without_data(size_t index) {
  const RunOutcome& forms = other_run({RunVariant::Kind::kMeta});
  return forms.returned() && index < forms.strides.size() ? forms.strides[index] : std::vector<int64_t>();
}

// Strides and aliases: later in-place operators rely on them.
void CallJudge::look_at_memory(size_t index, TensorVerdict* judgement) {
  Expectation* const wanted = judgement->expected.get();
  if (facts_.device.alone || (judgement->verdict != Verdict::kAgrees && !wanted)) return;
  const RunOutcome& reference = reference_run();
  if (index >= observed_.strides.size() || index >= reference.strides.size()) return;
  const std::vector<at::Tensor> results = flatten_tensors(observed_.result);
  if (is_copied_by_its_device(results[index])) return;
  const auto differ = [judgement](const char* kind, std::string reason) {
    if (judgement->verdict != Verdict::kAgrees) return;
    judgement->verdict = Verdict::kDiffers;
    judgement->kind = kind;
    judgement->reason = std::move(reason);
  };
  if (facts_.options.strides && !backend_picks_strides(base_name(facts_.name))) {
    const std::vector<int64_t> expected = expected_strides(index);
    const auto is_other_than = [&](const std::vector<int64_t>& strides) {
      return !same_order(observed_.strides[index], strides, results[index].sizes());
    };
    if (wanted) wanted->strides = {expected, strides_without_data(index)};
    if (is_other_than(expected) && is_other_than(strides_without_data(index))) {
      differ("strides", "strides " + list_text(observed_.strides[index]) + ", the CPU's are " + list_text(expected));
    }
  }
  // Zeros without memory (forward differentiation's tangent where there is none) have it on the CPU, where they are
  // copied.
  if (results[index]._is_zerotensor()) return;
  if (!facts_.memory.overlapping.empty()) return;  // the reference read copies
  if (facts_.device.names_device || facts_.device.autocast) return;
  if (wanted) wanted->aliases = reference.aliases[index];
  if (observed_.aliases[index] == reference.aliases[index]) return;
  differ("alias", "shows the memory of the inputs " + list_text(observed_.aliases[index]) + ", on the CPU of " +
                      list_text(reference.aliases[index]));
}

// Of a gradient. A gradient with gaps may have been packed when it was copied.
void CallJudge::look_at_strides(const at::Tensor& gradient, const at::Tensor& wanted, TensorVerdict* judgement) const {
  if (facts_.device.alone || !facts_.options.strides ||
      (judgement->verdict != Verdict::kAgrees && !judgement->expected))
    return;
  if (facts_.device.autocast || backend_picks_strides(base_name(facts_.name))) return;
  if (gradient.layout() != at::kStrided || wanted.layout() != at::kStrided) return;
  if (is_copied_by_its_device(gradient)) return;
  // An arriving gradient that is passed on expanded may have been made dense where it was copied for the CPU's run.
  for (int64_t dim = 0; dim < gradient.dim(); ++dim) {
    if (gradient.size(dim) > 1 && gradient.stride(dim) == 0) return;
  }
  if (!wanted.is_non_overlapping_and_dense()) return;
  if (judgement->expected) judgement->expected->strides = {wanted.strides().vec()};
  const bool is_same = same_order(gradient.strides().vec(), wanted.strides().vec(), wanted.sizes());
  if (is_same || judgement->verdict != Verdict::kAgrees) return;
  judgement->verdict = Verdict::kDiffers;
  judgement->kind = "strides";
  judgement->reason =
      "strides " + list_text(gradient.strides().vec()) + ", the CPU's are " + list_text(wanted.strides().vec());
}

void CallJudge::judge_leaf(size_t leaf, size_t count, size_t* tensor_index) {
  const std::optional<size_t> which = count > 1 ? std::optional(leaf) : std::nullopt;
  const std::string_view base = base_name(facts_.name);
  if (asks_about_device(base)) return;
  const Value value = leaves_of(observed_.result)[leaf];
  const bool is_tensor = value.is<at::Tensor>();
  const size_t index = is_tensor ? (*tensor_index)++ : 0;
  if (const auto* lost = value.get_if<Unsupported>())
    return add(Part::kOutput, which, not_judged(Unjudged::kNoForm, lost->type + ": " + lost->why));
  if (const auto* tensor = value.get_if<at::Tensor>(); tensor && tensor->defined()) {
    std::string type;
    const std::string why = why_not_copied(*tensor, &type);
    if (!why.empty()) return add(Part::kOutput, which, not_judged(Unjudged::kNoForm, type + ": " + why));
  }
  const at::Tensor result = tensor_of(value);
  const bool by_numbers = !facts_.random.is_other();
  if (result.defined() && is_tensor && !by_numbers) {
    if (auto judged = judge_distribution(base, facts_.args, facts_.kwargs, result, index))
      return add(Part::kOutput, which, *judged, result);
    return add(Part::kOutput, which, not_judged(Unjudged::kRandom, "random"), result);
  }
  if (!by_numbers) return add(Part::kOutput, which, not_judged(Unjudged::kRandom, "random"));
  const bool uninitialized = facts_.memory.uninitialized || returns_uninitialized(base);
  const int place = static_cast<int>(leaf);
  if (result.defined() && (uninitialized || place == facts_.memory.workspace || place == workspace_of(base))) {
    TensorVerdict judgement =
        not_judged(Unjudged::kUninitialized, uninitialized ? "uninitialized memory" : "scratch memory");
    const at::Tensor expected = facts_.device.alone ? at::Tensor() : leaf_tensor(reference_run(), leaf);
    if (expected.defined() && (expected.sizes() != result.sizes() || expected.scalar_type() != result.scalar_type())) {
      const TensorDiff diff = diff_tensors(result, expected);
      judgement = differs(diff.kind, diff.structure);
    }
    return add(Part::kOutput, which, std::move(judgement), result);
  }
  if (result.defined()) {
    const bool shows = facts_.device.alone && !facts_.pass.goes_backward && is_tensor && shows_inputs(index);
    // The statistics of a normalisation: some devices keep those of 16-bit floats in float32.
    const bool is_statistic = place > 0 && has_trait(base, OpTrait::kHasFirstDtype);
    const auto pick = [&](const RunOutcome& run) {
      const at::Tensor picked = leaf_tensor(run, leaf);
      const bool is_coarser =
          picked.defined() && rounding_of(picked.scalar_type()).unit > rounding_of(result.scalar_type()).unit;
      return is_statistic && is_coarser ? picked.to(result.scalar_type()) : picked;
    };
    TensorVerdict judgement = judge_tensor(result, pick, shows);
    if (is_tensor) look_at_memory(index, &judgement);
    if (is_open_result(base, place, facts_.args, facts_.kwargs)) {
      judgement.expected = nullptr;
      if (judgement.verdict == Verdict::kDiffers) {
        judgement = not_judged(Unjudged::kUndetermined, "what it holds is each backend's own matter");
      }
    }
    return add(Part::kOutput, which, std::move(judgement), result);
  }
  if (facts_.device.alone || value.is<c10::Device>()) return;  // a device differs
  const Values expected = leaves_of(reference_run().result);
  if (describe(value) != describe(expected[leaf]) && !facts_.device.names_device) {
    add(Part::kOutput, which, differs("value", describe(value) + " instead of " + describe(expected[leaf])));
  }
}

std::vector<Check> CallJudge::forward() {
  checks_.clear();
  if (!observed_.raised.empty()) {
    judge_raised();
    return std::move(checks_);
  }
  const Values leaves = leaves_of(observed_.result);
  const bool needs_reference = !facts_.device.alone && !facts_.random.is_other();
  if (needs_reference) {
    const RunOutcome& reference = reference_run();
    if (!reference.returned()) {
      add(Part::kCall, std::nullopt,
          not_judged(Unjudged::kNoReference,
                     reference.impossible.empty() ? "the CPU raises: " + reference.raised : reference.impossible));
      return std::move(checks_);
    }
    const size_t expected = leaves_of(reference.result).size();
    if (expected != leaves.size()) {
      add(Part::kCall, std::nullopt,
          differs("structure",
                  std::to_string(leaves.size()) + " values returned, " + std::to_string(expected) + " by the CPU"));
      return std::move(checks_);
    }
  }
  size_t tensor_index = 0;
  for (size_t i = 0; i < leaves.size(); ++i) judge_leaf(i, leaves.size(), &tensor_index);
  judge_inputs();
  return std::move(checks_);
}

// The call, or its backward, raised.
void CallJudge::judge_raised() {
  if (facts_.device.alone) return;
  if (is_ended_by_program(observed_.raised))
    return add(Part::kCall, std::nullopt, not_judged(Unjudged::kRaised, observed_.raised));
  if (facts_.pass.in_transform) {
    return add(Part::kCall, std::nullopt,
               not_judged(Unjudged::kRaised, "it raises inside a functorch transform: " + observed_.raised));
  }
  if (is_refused_by_autograd_or_vmap(observed_.raised)) {
    return add(Part::kCall, std::nullopt, not_judged(Unjudged::kRaised, "autograd refuses it, wherever it runs"));
  }
  if (!reference_run().returned()) return;
  const std::string where = backward_ ? "the device raised in the backward" : "the device raised";
  add(Part::kCall, std::nullopt, differs("raised", where + ", the CPU returns: " + observed_.raised));
}

void CallJudge::judge_inputs() {
  const auto returned = [&](size_t input) {
    for (const auto& aliases : observed_.aliases) {
      if (std::find(aliases.begin(), aliases.end(), static_cast<int64_t>(input)) != aliases.end()) return true;
    }
    return false;
  };
  // An input that has no copy (a subclass) has no place among them: their pairs are not known.
  if (observed_.inputs.size() != facts_.before.size()) return;
  for (size_t i = 0; i < observed_.inputs.size(); ++i) {
    const at::Tensor& now = observed_.inputs[i];
    const at::Tensor& then = facts_.before[i];
    if (!now.defined() || !then.defined() || is_scratch(base_name(facts_.name), then)) continue;
    if (i < facts_.memory.overlapping.size() && facts_.memory.overlapping[i]) continue;  // judged where it is written
    const auto same = [&](const at::Tensor& other) { return other.is_same(then); };
    if (std::any_of(facts_.before.begin(), facts_.before.begin() + static_cast<std::ptrdiff_t>(i), same)) continue;
    const bool changed = !is_unchanged(i);
    if (facts_.random.is_other()) {
      if (changed && !(i < observed_.written.size() && observed_.written[i]) && !returned(i)) {
        add(Part::kInput, i, not_judged(Unjudged::kRandom, "random"), now);
      }
      continue;
    }
    const bool written = i < observed_.written.size() && observed_.written[i];
    // Handed out where nothing is wrong, too: another device may change it.
    const auto must_stay = [&](TensorVerdict judgement) {
      if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>();
      if (changed || facts_.options.hands_out) add(Part::kInput, i, std::move(judgement), now);
    };
    if (facts_.device.alone && !changed && !written) {
      must_stay({});
      continue;
    }
    if (!facts_.device.alone || !written) {
      const RunOutcome& reference = reference_run();
      if (!reference.returned() || i >= reference.inputs.size()) continue;
      const bool writes = reference.written[i] || !same_bits(reference.inputs[i], then);
      if (!writes) {
        TensorVerdict judgement;
        if (changed) {
          judgement = differs("changed input", "the call changed it, though it must not");
          judgement.diff = diff_tensors(now, then, {.nan_equal = true});
        }
        must_stay(std::move(judgement));
        continue;
      }
    }
    if (returned(i)) continue;  // judged as a result
    if (facts_.memory.uninitialized || returns_uninitialized(base_name(facts_.name))) continue;
    add(Part::kInput, i,
        judge_tensor(now.detach(),
                     [i](const RunOutcome& run) {
                       return run.returned() && i < run.inputs.size() ? run.inputs[i].detach() : at::Tensor();
                     }),
        now);
  }
}

std::vector<Check> CallJudge::gradients() {
  checks_.clear();
  backward_ = true;
  if (!observed_.raised.empty()) {
    judge_raised();
    return std::move(checks_);
  }
  if (facts_.random.is_other()) {
    add(Part::kGradient, std::nullopt, not_judged(Unjudged::kRandom, "random"));
    return std::move(checks_);
  }
  const RunVariant first{facts_.device.alone ? RunVariant::Kind::kFloat64 : RunVariant::Kind::kReference};
  const RunOutcome& expected = facts_.device.alone && !facts_.random.drawn ? other_run(first) : reference_run();
  if (!expected.returned() || expected.gradients.empty()) {
    const std::string why = !expected.impossible.empty() ? expected.impossible
                            : !expected.raised.empty()   ? "the CPU raises: " + expected.raised
                                                         : "the CPU's run has no gradients";
    add(Part::kGradient, std::nullopt, not_judged(Unjudged::kNoReference, why));
    return std::move(checks_);
  }
  for (size_t i = 0; i < observed_.gradients.size(); ++i) {
    const at::Tensor& gradient = observed_.gradients[i];
    const at::Tensor wanted = i < expected.gradients.size() ? expected.gradients[i] : at::Tensor();
    if (!gradient.defined() && (!wanted.defined() || facts_.pass.incomplete)) continue;
    if (!gradient.defined() || !wanted.defined()) {
      const at::Tensor& only = gradient.defined() ? gradient : wanted;
      if (all_zero(only)) continue;  // nothing is as good as zeros
      TensorVerdict judgement =
          differs("presence", gradient.defined() ? "a gradient, the CPU gives none" : "no gradient, the CPU gives one");
      const at::Tensor zeros = gradient.defined() ? only.mul(0).nan_to_num() : only;
      if (facts_.options.hands_out) judgement.expected = std::make_shared<Expectation>(expect_exactly(zeros));
      add(Part::kGradient, i, std::move(judgement), gradient);
      continue;
    }
    TensorVerdict judgement = judge_tensor(gradient, [i](const RunOutcome& run) {
      return run.returned() && i < run.gradients.size() ? run.gradients[i] : at::Tensor();
    });
    look_at_strides(gradient, wanted, &judgement);
    add(Part::kGradient, i, std::move(judgement), gradient);
  }
  return std::move(checks_);
}

}  // namespace op_tools
