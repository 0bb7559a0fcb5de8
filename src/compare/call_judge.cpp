#include "compare/call_judge.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>

#include <algorithm>
#include <array>
#include <utility>

#include "compare/distribution_test.h"
#include "compare/rerun/unwritten_fill.h"
#include "hooks/error_origin.h"
#include "hooks/op_traits.h"
#include "tensor/plain_tensor.h"
#include "tensor/result_numbers.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

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

bool are_numbers_of_a_kind(const Values& leaves) {
  const auto are = [&](auto kind) {
    return std::all_of(leaves.begin(), leaves.end(), [](const Value& leaf) { return leaf.is<decltype(kind)>(); });
  };
  return are(double{}) || are(int64_t{}) || are(bool{});
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

const CallJudge::Listed& CallJudge::listed(const RunOutcome& run) {
  const auto [entry, is_new] = listed_.try_emplace(&run);
  if (is_new) entry->second = {leaves_of(run.result), flatten_tensors(run.result)};
  return entry->second;
}

at::Tensor CallJudge::leaf_tensor(const RunOutcome& run, size_t leaf) {
  if (!run.returned()) return {};
  const Values& leaves = listed(run).leaves;
  return leaf < leaves.size() ? tensor_of(leaves[leaf]) : at::Tensor();
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

// x.cpu() of a tensor that is there gives x itself, where a device gives a copy.
std::vector<int64_t> CallJudge::expected_strides(size_t index) {
  const RunOutcome& reference = reruns_.reference();
  const bool only_there = observed_.aliases[index].empty() && !reference.aliases[index].empty();
  if (!facts_.device.names_device || !only_there) return reference.strides[index];
  return strides_of_copy(listed(reference).tensors[index]);
}

// Torch's own word on the result's form, without running a kernel: a device that follows it is right, where the
// CPU's kernel does not. Empty: nothing.
std::vector<int64_t> CallJudge::strides_without_data(size_t index) {
  const RunOutcome& forms = reruns_.variant({RunVariant::Kind::kMeta});
  return forms.returned() && index < forms.strides.size() ? forms.strides[index] : std::vector<int64_t>();
}

// Strides and aliases: later in-place operators rely on them.
void CallJudge::look_at_memory(size_t index, TensorVerdict* judgement) {
  Expectation* const wanted = judgement->expected.get();
  if (facts_.device.alone || (judgement->verdict != Verdict::kAgrees && !wanted)) return;
  const RunOutcome& reference = reruns_.reference();
  if (index >= observed_.strides.size() || index >= reference.strides.size()) return;
  const std::vector<at::Tensor>& results = listed(observed_).tensors;
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
  if (observed_.aliases[index] == reference.aliases[index]) {
    if (wanted && facts_.pass.of_graph && index < reference.shared.size()) wanted->shared = reference.shared[index];
    const std::string fault = fault_of_sharing(index);
    if (!fault.empty()) differ("alias", fault);
    return;
  }
  if (facts_.pass.of_graph) {
    const RunOutcome& forms = reruns_.variant({RunVariant::Kind::kMeta});
    if (forms.returned() && index < forms.aliases.size() && observed_.aliases[index] == forms.aliases[index]) return;
  }
  differ("alias", "shows the memory of the inputs " + list_text(observed_.aliases[index]) + ", on the CPU of " +
                      list_text(reference.aliases[index]));
}

// Of a result whose numbers no reference has.
void CallJudge::look_at_form(const at::Tensor& result, size_t leaf, TensorVerdict* judgement) {
  if (facts_.device.alone) return;
  const at::Tensor expected = leaf_tensor(reruns_.reference(), leaf);
  if (!expected.defined() || (expected.sizes() == result.sizes() && expected.scalar_type() == result.scalar_type())) {
    return;
  }
  const TensorDiff diff = diff_tensors(result, expected);
  *judgement = differs(diff.kind, diff.structure);
}

// What is written into a result must show in the results before it as after the CPU's run. Empty: it does. The copy of
// a result that is a view elsewhere counts in a graph alone: an operator's own results are nobody's views.
std::string CallJudge::fault_of_sharing(size_t index) {
  const auto has = [index](const RunOutcome& run, size_t other) {
    if (index >= run.shared.size()) return false;
    const std::vector<int64_t>& others = run.shared[index];
    return std::find(others.begin(), others.end(), static_cast<int64_t>(other)) != others.end();
  };
  const RunOutcome& reference = reruns_.reference();
  if (index >= observed_.shared.size() || index >= reference.shared.size()) return {};
  if (observed_.shared[index] == reference.shared[index]) return {};
  const std::vector<at::Tensor>& results = listed(observed_).tensors;
  const RunOutcome& forms = reruns_.variant({RunVariant::Kind::kMeta});
  for (size_t other = 0; other < index; ++other) {
    const bool shows = has(observed_, other);
    if (shows == has(reference, other) || (!shows && !facts_.pass.of_graph)) continue;
    if (forms.returned() && index < forms.shared.size() && has(forms, other) == shows) continue;
    if (results[index].device() != results[other].device()) continue;  // the CPU's run has all of them in one place
    return shows ? "shows the memory of result " + std::to_string(other) + ", on the CPU memory of its own"
                 : "shows memory of its own, on the CPU that of result " + std::to_string(other);
  }
  return {};
}

// A compiler that leaves out the gradient of a result: nothing raises, and the weights before it stay as they are.
bool CallJudge::lacks_gradient_function(size_t index) {
  if (!facts_.pass.of_graph || !facts_.pass.goes_backward) return false;
  const std::vector<bool>& wanted = reruns_.reference().requires_grad;
  return index < wanted.size() && index < observed_.requires_grad.size() && wanted[index] &&
         !observed_.requires_grad[index];
}

// A gradient of a pass with create_graph=True: nothing raises, and a gradient penalty loses its gradient.
bool CallJudge::is_lost_for_second_order(size_t index) {
  const std::vector<bool>& in_graph = observed_.gradients_in_graph;
  if (index >= in_graph.size() || in_graph[index]) return false;
  const RunOutcome& eager = reruns_.variant({RunVariant::Kind::kInGraph});
  return eager.returned() && index < eager.gradients.size() && eager.gradients[index].defined() &&
         eager.gradients[index].requires_grad();
}

bool CallJudge::shows_unwritten_memory(size_t leaf) {
  if (!facts_.pass.graph.has_unwritten_memory) return false;
  const auto filled = [&](UnwrittenFill fill) {
    return leaf_tensor(reruns_.variant({RunVariant::Kind::kUnwritten, static_cast<int>(fill)}), leaf);
  };
  const at::Tensor zero = filled(UnwrittenFill::kZero), nan = filled(UnwrittenFill::kNan);
  return zero.defined() && nan.defined() && !same_bits(zero, nan);
}

// Of a gradient. A gradient with gaps may have been packed when it was copied.
void CallJudge::look_at_strides(const at::Tensor& gradient, const at::Tensor& wanted, TensorVerdict* judgement) const {
  if (facts_.device.alone || !facts_.options.strides ||
      (judgement->verdict != Verdict::kAgrees && !judgement->expected))
    return;
  if (facts_.device.autocast || facts_.pass.of_graph || backend_picks_strides(base_name(facts_.name))) return;
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
  const Value& value = listed(observed_).leaves[leaf];
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
    TensorVerdict judgement = judge_distribution(base, facts_.args, facts_.kwargs, listed(observed_).tensors, index)
                                  .value_or(not_judged(Unjudged::kRandom, "random"));
    if (is_torchs_own(facts_.name) && reruns_.reference().returned()) {
      look_at_form(result, leaf, &judgement);
      look_at_memory(index, &judgement);
    }
    return add(Part::kOutput, which, std::move(judgement), result);
  }
  if (!by_numbers) return add(Part::kOutput, which, not_judged(Unjudged::kRandom, "random"));
  const bool uninitialized = facts_.memory.uninitialized || returns_uninitialized(base);
  const int place = static_cast<int>(leaf);
  if (result.defined() && (uninitialized || place == facts_.memory.workspace || place == workspace_of(base))) {
    TensorVerdict judgement =
        not_judged(Unjudged::kUninitialized, uninitialized ? "uninitialized memory" : "scratch memory");
    look_at_form(result, leaf, &judgement);
    return add(Part::kOutput, which, std::move(judgement), result);
  }
  if (result.defined() && facts_.pass.of_graph) {
    const Value& expected = listed(reruns_.reference()).leaves[leaf];
    if (!tensor_of(expected).defined()) {
      return add(Part::kOutput, which, differs("value", describe(value) + " instead of " + describe(expected)), result);
    }
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
    TensorVerdict judgement =
        results_.judge_tensor(result, pick, shows ? ResultJudge::Subject::kShownInputs : ResultJudge::Subject::kResult);
    if (is_tensor) look_at_memory(index, &judgement);
    if (is_open_result(base, place, facts_.args, facts_.kwargs)) {
      judgement.expected = nullptr;
      if (judgement.verdict == Verdict::kDiffers) {
        judgement = not_judged(Unjudged::kUndetermined, "what it holds is each backend's own matter");
      }
    }
    const bool is_of_values = judgement.verdict == Verdict::kAgrees || judgement.kind == "values";
    if (is_of_values && shows_unwritten_memory(leaf)) {
      judgement = not_judged(Unjudged::kUninitialized, "uninitialized memory");
    }
    add(Part::kOutput, which, std::move(judgement), result);
    if (is_tensor && lacks_gradient_function(index)) {
      add(Part::kOutput, which,
          differs("no gradient",
                  "it has no gradient function, and run eagerly it has: no gradient reaches what is before the graph"),
          result);
    }
    return;
  }
  if (facts_.device.alone || value.is<c10::Device>()) return;  // a device differs
  const Values& expected = listed(reruns_.reference()).leaves;
  if (const auto* const bytes = value.get_if<Bytes>()) {  // of an array of numpy, to which elements are copied
    const auto* const wanted = expected[leaf].get_if<Bytes>();
    if (wanted && wanted->bytes != bytes->bytes) {
      return add(Part::kOutput, which, differs("value", "the array has other elements"));
    }
  }
  if (describe(value) != describe(expected[leaf]) && !facts_.device.names_device) {
    add(Part::kOutput, which, differs("value", describe(value) + " instead of " + describe(expected[leaf])));
  }
}

// Of a result that is numbers alone (tolist()): as a tensor of them.
void CallJudge::judge_numbers() {
  if (asks_about_device(base_name(facts_.name))) return;
  const auto numbers_of = [](const RunOutcome& run) {
    return run.returned() ? result_numbers(run.result, at::kFloat) : at::Tensor();
  };
  const at::Tensor numbers = numbers_of(observed_);
  if (facts_.random.is_other()) {
    return add(Part::kOutput, std::nullopt, not_judged(Unjudged::kRandom, "random"), numbers);
  }
  if (facts_.memory.uninitialized) {
    return add(Part::kOutput, std::nullopt, not_judged(Unjudged::kUninitialized, "uninitialized memory"), numbers);
  }
  add(Part::kOutput, std::nullopt, results_.judge_tensor(numbers, numbers_of), numbers);
}

std::vector<Check> CallJudge::memory() {
  checks_.clear();
  const Values& leaves = listed(observed_).leaves;
  size_t index = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].is<at::Tensor>()) continue;
    TensorVerdict judgement;
    judgement.verdict = Verdict::kAgrees;
    look_at_memory(index++, &judgement);
    if (judgement.verdict == Verdict::kAgrees) continue;
    const std::optional<size_t> which = leaves.size() > 1 ? std::optional(i) : std::nullopt;
    add(Part::kOutput, which, std::move(judgement), *leaves[i].get_if<at::Tensor>());
  }
  return std::move(checks_);
}

std::vector<Check> CallJudge::forward() {
  checks_.clear();
  if (!observed_.raised.empty()) {
    judge_raised("the device raised");
    return std::move(checks_);
  }
  if (!facts_.device.stray.empty()) {
    add(Part::kCall, std::nullopt,
        differs("device", "a result is on " + facts_.device.stray + ", and the call's tensors are not"));
    return std::move(checks_);
  }
  const Values& leaves = listed(observed_).leaves;
  const bool needs_reference = !facts_.device.alone && !facts_.random.is_other();
  if (needs_reference) {
    const RunOutcome& reference = reruns_.reference();
    if (is_index_out_of_range(reference.raised)) {
      add(Part::kCall, std::nullopt,
          differs("index", "an index has no element: the device returns, the CPU raises: " + reference.raised));
      return std::move(checks_);
    }
    if (!reference.returned()) {
      add(Part::kCall, std::nullopt,
          not_judged(Unjudged::kNoReference,
                     reference.impossible.empty() ? "the CPU raises: " + reference.raised : reference.impossible));
      return std::move(checks_);
    }
    const size_t expected = listed(reference).leaves.size();
    if (expected != leaves.size()) {
      add(Part::kCall, std::nullopt,
          differs("structure",
                  std::to_string(leaves.size()) + " values returned, " + std::to_string(expected) + " by the CPU"));
      return std::move(checks_);
    }
  }
  // A graph may give numbers where its operators give tensors, and show memory that was never written.
  if (leaves.size() > 1 && !facts_.pass.of_graph && are_numbers_of_a_kind(leaves)) {
    judge_numbers();
  } else {
    size_t tensor_index = 0;
    for (size_t i = 0; i < leaves.size(); ++i) judge_leaf(i, leaves.size(), &tensor_index);
  }
  judge_inputs();
  return std::move(checks_);
}

// The call, or its backward, raised: `where` says so.
void CallJudge::judge_raised(const char* where) {
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
  if (facts_.device.absent || is_refused_for_devices(observed_.raised, facts_.device.several)) {
    return add(Part::kCall, std::nullopt,
               not_judged(Unjudged::kRaised, "its devices were refused: " + observed_.raised));
  }
  if (!facts_.memory.overlapping.empty()) {
    return add(Part::kCall, std::nullopt,
               not_judged(Unjudged::kRaised,
                          "its inputs share memory, and the reference's copies do not: " + observed_.raised));
  }
  const RunOutcome& reference = reruns_.reference();
  if (!reference.impossible.empty()) {
    return add(Part::kCall, std::nullopt, not_judged(Unjudged::kNoReference, reference.impossible));
  }
  if (!reference.returned()) return;
  add(Part::kCall, std::nullopt, differs("raised", std::string(where) + ", the CPU returns: " + observed_.raised));
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
      const RunOutcome& reference = reruns_.reference();
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
        results_.judge_tensor(now.detach(),
                              [i](const RunOutcome& run) {
                                return run.returned() && i < run.inputs.size() ? run.inputs[i].detach() : at::Tensor();
                              }),
        now);
  }
}

std::vector<Check> CallJudge::gradients() {
  checks_.clear();
  if (!observed_.raised.empty()) {
    judge_raised("the device raised in the backward");
    return std::move(checks_);
  }
  if (facts_.random.is_other()) {
    add(Part::kGradient, std::nullopt, not_judged(Unjudged::kRandom, "random"));
    return std::move(checks_);
  }
  const RunVariant first{facts_.device.alone ? RunVariant::Kind::kFloat64 : RunVariant::Kind::kReference};
  const RunOutcome& expected =
      facts_.device.alone && !facts_.random.drawn ? reruns_.variant(first) : reruns_.reference();
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
    TensorVerdict judgement = results_.judge_tensor(
        gradient,
        [i](const RunOutcome& run) {
          return run.returned() && i < run.gradients.size() ? run.gradients[i] : at::Tensor();
        },
        ResultJudge::Subject::kGradient);
    look_at_strides(gradient, wanted, &judgement);
    add(Part::kGradient, i, std::move(judgement), gradient);
    if (is_lost_for_second_order(i)) {
      add(Part::kGradient, i,
          differs("no gradient",
                  "with create_graph=True it has no gradient function, and run eagerly it has: what the program makes "
                  "of it gives no gradient"),
          gradient);
    }
  }
  return std::move(checks_);
}

}  // namespace op_tools
