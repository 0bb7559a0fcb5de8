#include "invariance/call_invariance.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "calls/random_state.h"
#include "compare/call_judge.h"
#include "compare/metrics/tolerance.h"
#include "fallback/moved_tensors.h"
#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"
#include "invariance/copies.h"
#include "invariance/other_execution.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

constexpr int64_t kRunsToTell = 8;  // a single fault from a result that never repeats

constexpr std::array<Token, static_cast<size_t>(Relation::kCount)> kRelations{{
    {"repeat", "the same inputs again"},
    {"memory", "the same inputs at another alignment in memory, or without gaps between them"},
    {"threads", "the same inputs with another number of threads on the CPU"},
    {"stream", "the same inputs on another stream of the device"},
    {"neighbour", "a row beside other values in the other rows of the batch"},
    {"batch", "a row in a batch of another size"},
    {"position", "a row at another position of the batch"},
    {"strides", "the same inputs with a gap behind each row in memory, or without where the program has gaps"},
    {"shift", "a row at another place of its sequence"},
    {"sequence", "the second dimension in pieces, or all sequences behind each other"},
    {"padding", "attention with more keys that the mask or the causal order leaves out"},
    {"pieces", "attention with its queries in pieces"},
    {"packed", "attention with its sequences behind each other, which a mask keeps apart"},
}};

constexpr std::array<Token, static_cast<size_t>(Rightness::kCount)> kRightness{{
    {"unknown", "nothing says which of the two is right"},
    {"both right", "both are right within rounding"},
    {"program wrong", "the program's result is wrong, the other is right"},
    {"other wrong", "the program's result is right, the other is wrong"},
    {"both wrong", "both are wrong"},
}};

Rightness rightness_of(Verdict program, Verdict other) {
  if (program == Verdict::kNotJudged || other == Verdict::kNotJudged) return Rightness::kUnknown;
  if (program == Verdict::kAgrees) {
    return other == Verdict::kAgrees ? Rightness::kBothRight : Rightness::kOtherWrong;
  }
  return other == Verdict::kAgrees ? Rightness::kProgramWrong : Rightness::kBothWrong;
}

}  // namespace

Token token_of(Relation relation) {
  return kRelations[static_cast<size_t>(relation)];
}

Token token_of(Rightness rightness) {
  return kRightness[static_cast<size_t>(rightness)];
}

std::vector<uintptr_t> alignments_of(const std::vector<at::Tensor>& tensors) {
  std::vector<uintptr_t> alignments;
  for (const at::Tensor& tensor : tensors) {
    std::string type;
    const bool has_memory = tensor.defined() && tensor.layout() == at::kStrided && tensor.numel() > 0 &&
                            !tensor._is_zerotensor() && why_not_plain(tensor, &type).empty();
    alignments.push_back(has_memory ? reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64 : 0);
  }
  return alignments;
}

std::vector<Relation> wanted_relations(const ResolvedInvarianceOptions& options, bool on_cpu) {
  std::vector<Relation> relations{Relation::kRepeat};
  if (options.alignment) relations.push_back(Relation::kMemory);
  if (on_cpu && options.threads) relations.push_back(Relation::kThreads);
  if (!on_cpu && options.stream) relations.push_back(Relation::kStream);
  if (options.batch) relations.insert(relations.end(), {Relation::kNeighbour, Relation::kPosition, Relation::kBatch});
  if (options.strides) relations.push_back(Relation::kStrides);
  if (options.sequence) {
    relations.insert(relations.end(),
                     {Relation::kShift, Relation::kSequence, Relation::kPadding, Relation::kPieces, Relation::kPacked});
  }
  return relations;
}

std::vector<RelationVerdict> nothing_judged(const ResolvedInvarianceOptions& options, bool on_cpu, Unjudged why,
                                            const std::string& reason) {
  std::vector<RelationVerdict> verdicts;
  for (const Relation relation : wanted_relations(options, on_cpu)) {
    verdicts.push_back({relation, Verdict::kNotJudged, why, reason, std::nullopt});
  }
  return verdicts;
}

CallInvariance::CallInvariance(const ReplayableCall& call, std::string_view name, const ObservedRun& observed,
                               const ResolvedInvarianceOptions& options)
    : call_(call), name_(name), observed_(observed), options_(options), program_(values_of(observed.outcome)) {
  for (const Tensors& tensors : {program_, observed.outcome.inputs}) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.device().is_cpu()) continue;
      if (std::find(devices_.begin(), devices_.end(), tensor.device()) == devices_.end()) {
        devices_.push_back(tensor.device());
      }
    }
  }
}

std::vector<RelationVerdict> CallInvariance::judge() {
  // Copies are ordinary tensors, whatever mode the program is in.
  const c10::InferenceMode ordinary(false);
  const InternalGuard ours;
  try {
    ask();
  } catch (const std::exception& error) {
    verdicts_ = nothing_judged(options_, devices_.empty(), Unjudged::kJudgeFailed,
                               "the comparison failed: " + exception_text(error));
  }
  return std::move(verdicts_);
}

void CallInvariance::ask() {
  const auto is_there = [](const at::Tensor& tensor) { return tensor.defined(); };
  if (std::none_of(program_.begin(), program_.end(), is_there)) return;  // nothing was computed
  if (!ask_repeat()) return;
  learn_form();
  for (const Relation relation : wanted_relations(options_, devices_.empty())) ask(relation);
}

void CallInvariance::ask(Relation relation) {
  const bool is_of_rows = relation >= Relation::kNeighbour;
  if (relation == Relation::kPadding && (!attention_ || !attention_->leaves_out())) return;
  if ((relation == Relation::kPieces || relation == Relation::kPacked) && !attention_) return;
  if (relation == Relation::kSequence && form_.why_not.empty() && form_.sequence == 0) return;
  if (relation == Relation::kShift && !attention_ && form_.why_not.empty() && form_.sequence < 2) return;
  if (is_of_rows && !why_no_rows_.empty()) return leave(relation, no_rows_, why_no_rows_);
  switch (relation) {
    case Relation::kMemory:
      return ask_memory();
    case Relation::kThreads:
      return ask_threads();
    case Relation::kStream:
      return ask_stream();
    case Relation::kNeighbour:
      return ask_neighbours();
    case Relation::kPosition:
      return ask_positions();
    case Relation::kBatch:
      return ask_batch();
    case Relation::kStrides:
      return ask_strides();
    case Relation::kShift:
      return ask_shift();
    case Relation::kSequence:
      return ask_sequence();
    case Relation::kPadding:
      return ask_padding();
    case Relation::kPieces:
      return ask_pieces();
    case Relation::kPacked:
      return ask_packed();
    default:
      return;  // kRepeat was asked first
  }
}

void CallInvariance::agree(Relation relation) {
  verdicts_.push_back({relation, Verdict::kAgrees, {}, "", std::nullopt});
}

void CallInvariance::leave(Relation relation, Unjudged why, std::string reason) {
  verdicts_.push_back({relation, Verdict::kNotJudged, why, std::move(reason), std::nullopt});
}

void CallInvariance::vary(Relation relation, Variation variation) {
  if (variation.changes.program.empty()) {  // all of it is compared
    for (size_t i = 0; i < program_.size(); ++i) {
      if (program_[i].defined()) variation.changes.program[i] = variation.changes.other[i] = {};
    }
  }
  verdicts_.push_back({relation, Verdict::kDiffers, {}, "", std::move(variation)});
}

// Results, then the inputs that the call wrote; of a backward pass the gradients. Undefined: it is not compared.
CallInvariance::Tensors CallInvariance::values_of(const RunOutcome& outcome) const {
  Tensors values;
  if (observed_.output_gradients) {
    values = outcome.gradients;
  } else {
    values = flatten_tensors(outcome.result);
    for (size_t i = 0; i < values.size() && i < observed_.compared.size(); ++i) {
      if (!observed_.compared[i]) values[i] = at::Tensor();
    }
    const std::vector<bool>& written = observed_.outcome.written;
    for (size_t i = 0; i < outcome.inputs.size(); ++i) {
      values.push_back(i < written.size() && written[i] ? outcome.inputs[i] : at::Tensor());
    }
  }
  for (at::Tensor& value : values) {
    std::string type;
    if (value.defined() && !why_not_copied(value, &type).empty()) value.reset();
  }
  return values;
}

std::optional<CallInvariance::Tensors> CallInvariance::again(const ReplayableCall& call, std::string* why,
                                                             RunOutcome* outcome, const Tensors* output_gradients) {
  RunOutcome run = call.run_on_device({RunVariant::Kind::kOnDevice}, observed_.random_states,
                                      output_gradients ? output_gradients : observed_.output_gradients);
  if (!run.returned()) {
    if (why) *why = run.impossible.empty() ? "it raises when it is run again: " + run.raised : run.impossible;
    return std::nullopt;
  }
  Tensors values = values_of(run);
  if (outcome) *outcome = std::move(run);
  return values;
}

ReplayableCall CallInvariance::call_with(const RunChanges& changes) const {
  const Tensors& tensors = call_.tensors();
  ReplayableCall call = call_.with_inputs([&](const at::Tensor& tensor) {
    for (const auto& [index, steps] : changes.inputs) {
      if (tensors[index].is_same(tensor)) return changed_copy(tensor, steps);
    }
    return at::Tensor();
  });
  if (!changes.order && !changes.packing) return call;
  const Values& in = *sequence_items(call.inputs().value);
  const AttentionForm form = *attention_form(name_, in[0], in[1]);
  const int64_t queries = form.query.size(-2), keys = form.key.size(-2);
  const at::ScalarType dtype = form.query.scalar_type();
  const at::Tensor mask = changes.order ? mask_of(*changes.order, queries, keys, dtype)
                                        : mask_of(*changes.packing, form.mask, form.query.dim(), queries, keys, dtype);
  const NamedArguments masked = with_argument(form.parameters, form.mask_name, mask, in[0], in[1]);
  const NamedArguments without = with_argument(form.parameters, "is_causal", false, masked.args, masked.kwargs);
  return call.with_arguments(without.args, without.kwargs);
}

std::optional<CallInvariance::OtherRun> CallInvariance::run_with(const RunChanges& changes) {
  OtherRun run{call_with(changes), {}, {}, Tensors(program_.size()), Tensors(program_.size())};
  if (is_backward()) {
    run.gradients = *observed_.output_gradients;
    for (const auto& [index, steps] : changes.gradients) {
      at::Tensor& gradient = (*run.gradients)[index];
      const at::Tensor copy = changed_copy(gradient, steps);
      if (!copy.defined()) return std::nullopt;
      gradient = copy.to(gradient.device());
    }
  }
  std::optional<Tensors> values = again(run.call, nullptr, &run.outcome, run.gradients ? &*run.gradients : nullptr);
  // A mask is an input more, behind those that are compared.
  const bool has_mask = changes.order || changes.packing;
  if (!values || (!has_mask && values->size() != program_.size())) return std::nullopt;
  const auto part_of = [](const at::Tensor& tensor, const TensorChanges& steps) {
    return steps.empty() ? tensor : changed_copy(tensor, steps);
  };
  bool any = false;
  for (const auto& [index, steps] : changes.program) {
    if (index >= program_.size() || index >= values->size()) return std::nullopt;
    const at::Tensor &program = program_[index], &value = (*values)[index];
    if (!program.defined() || !value.defined() || value.layout() != program.layout()) continue;
    if (changes.rows && (value.dim() == 0 || value.size(0) != *changes.rows)) return std::nullopt;
    run.program[index] = part_of(program, steps);
    run.values[index] = part_of(value, changes.other.at(index));
    const bool fits = run.program[index].defined() && run.values[index].defined() &&
                      run.program[index].sizes() == run.values[index].sizes();
    if (!fits) return std::nullopt;
    any = true;
  }
  return any ? std::optional(std::move(run)) : std::nullopt;
}

std::optional<Variation> CallInvariance::variation_of(const OtherRun& run, const RunChanges& changes,
                                                      std::string text) {
  const std::optional<BitDifference> difference = bit_difference(run.program, run.values);
  if (!difference) return std::nullopt;
  Variation variation;
  variation.difference = *difference;
  variation.rows_of_run = std::move(text);
  variation.rightness = rightness(run.call, run.outcome, run.gradients ? &*run.gradients : nullptr);
  variation.changes = changes;
  return variation;
}

bool CallInvariance::is_cause(const Variation& variation, const OtherRun& run) {
  const RunChanges copied = copies_of(variation.changes);
  const auto repeats = [&](const OtherRun& first, const RunChanges& changes) {
    const std::optional<OtherRun> same = run_with(changes);
    return same && !bit_difference(first.values, same->values);
  };
  const std::optional<OtherRun> copy = run_with(copied);
  const bool is_other = !copy || bit_difference(copy->program, copy->values);
  const bool is_same_again = repeats(run, variation.changes);
  if (is_same_again && !is_other) return true;
  Variation other = variation;
  if (!is_same_again || (copy && is_other && !repeats(*copy, copied))) {
    other.transient = true;
    other.changes = {};
    vary(Relation::kRepeat, std::move(other));
  } else {
    other.rows_of_run = "all rows, without gaps";
    other.changes = copied;
    vary(Relation::kMemory, std::move(other));
  }
  return false;
}

// False: there is no more to be asked.
bool CallInvariance::ask_repeat() {
  Variation variation;
  std::vector<Tensors> kinds;  // of other bits than the program's
  RunOutcome other;
  std::string why;
  const auto run = [&] {
    RunOutcome outcome;
    const std::optional<Tensors> values = again(call_, &why, &outcome);
    if (!values) return false;
    ++variation.runs;
    const std::optional<BitDifference> difference = bit_difference(program_, *values);
    if (!difference) return true;
    if (variation.other_runs++ == 0) {
      variation.difference = *difference;
      other = std::move(outcome);
    }
    const auto is_same = [&](const Tensors& kind) { return !bit_difference(kind, *values); };
    if (std::none_of(kinds.begin(), kinds.end(), is_same)) kinds.push_back(*values);
    return true;
  };
  while (variation.runs < options_.repeats) {
    if (run()) continue;
    verdicts_ = nothing_judged(options_, devices_.empty(), Unjudged::kNoReference, why);
    return false;
  }
  if (variation.other_runs == 0) {
    agree(Relation::kRepeat);
    return true;
  }
  while (variation.runs < kRunsToTell && run()) {
  }
  const bool program_alone = variation.other_runs == variation.runs && kinds.size() == 1;
  variation.rightness = rightness(call_, other);
  // Copies of inputs that do not fill their memory, or lie at odd addresses, may lie at others.
  if (program_alone && alignments_of(other.inputs) != observed_.alignments) {
    vary(Relation::kMemory, std::move(variation));
    return false;
  }
  variation.transient = variation.other_runs == 1 || program_alone;
  if (variation.transient) variation.odd = program_alone ? OddRun::kProgram : OddRun::kOther;
  vary(Relation::kRepeat, std::move(variation));
  return false;
}

void CallInvariance::ask_memory() {
  if (!call_.overlapping_inputs().empty()) {
    return leave(Relation::kMemory, Unjudged::kNoForm, "it reads memory that it writes, at other places");
  }
  if (has_trait(base_name(name_), OpTrait::kReadsStorageOffset)) {
    return leave(Relation::kMemory, Unjudged::kNoForm, "its arguments name places in memory");
  }
  if (!copies_keep_offsets(call_.tensors())) {
    return leave(Relation::kMemory, Unjudged::kNoForm, "beside a sparse tensor its inputs keep their place in memory");
  }
  RunChanges moved;
  for (size_t i = 0; i < call_.tensors().size(); ++i) {
    if (!can_have_other_alignment(call_.tensors()[i])) continue;
    moved.inputs[i] = {{.kind = TensorChange::Kind::kAlignment}};
  }
  if (moved.inputs.empty()) return;  // nothing that could lie elsewhere
  ask_whole(Relation::kMemory, moved, [](const std::function<void()>& run) { run(); });
}

void CallInvariance::ask_threads() {
  ask_whole(Relation::kThreads, {}, [](const std::function<void()>& run) {
    const OtherThreadCount threads;
    run();
  });
}

void CallInvariance::ask_stream() {
  if (devices_.size() > 1) return leave(Relation::kStream, Unjudged::kNoForm, "it runs on several devices");
  ask_whole(Relation::kStream, {}, [&](const std::function<void()>& run) {
    const OtherStream stream(devices_[0]);
    run();
    stream.wait();
  });
}

void CallInvariance::ask_whole(Relation relation, const RunChanges& changes,
                               const std::function<void(const std::function<void()>&)>& around) {
  const ReplayableCall call = call_with(changes);
  std::string why;
  RunOutcome outcome;
  std::optional<Tensors> values, once_more;
  try {
    around([&] { values = again(call, &why, &outcome); });
  } catch (const CannotRunSo& error) {
    return leave(relation, Unjudged::kNoForm, error.what());
  }
  if (!values) return leave(relation, Unjudged::kNoReference, why);
  const std::optional<BitDifference> difference = bit_difference(program_, *values);
  if (!difference) return agree(relation);
  Variation variation;
  variation.difference = *difference;
  variation.rightness = rightness(call, outcome);
  // Is it the relation, or does the call not repeat?
  const std::optional<Tensors> same = again(call_);
  around([&] { once_more = again(call); });
  const bool repeats = same && once_more && !bit_difference(program_, *same) && !bit_difference(*values, *once_more);
  if (repeats) {
    variation.changes = changes;
    return vary(relation, std::move(variation));
  }
  variation.transient = true;
  // Then the first of the two was alone.
  if (same && once_more && !bit_difference(*same, *once_more) && !bit_difference(program_, *same)) {
    variation.odd = OddRun::kOther;
  }
  vary(Relation::kRepeat, std::move(variation));
}

Verdict CallInvariance::verdict_on(const ReplayableCall& call, const RunOutcome& outcome,
                                   const Tensors* output_gradients) const {
  static const ToleranceTable tolerances = ToleranceTable::from_environment();
  CallFacts facts = facts_of(call, name_);
  facts.options.tolerances = &tolerances;
  facts.options.strides = false;
  facts.random.drawn = !observed_.random_states.is<None>();
  const at::Tensor* start = only_cpu_state(observed_.random_states);
  facts.random.repeatable = start != nullptr;
  const RunAgain run = [&](const RunVariant& variant) { return call.run(variant, output_gradients, start); };
  CallJudge judge(facts, outcome, run);
  Verdict verdict = Verdict::kNotJudged;
  for (const Check& check : output_gradients ? judge.gradients() : judge.forward()) {
    if (check.judgement.verdict == Verdict::kDiffers) return Verdict::kDiffers;
    if (check.judgement.verdict == Verdict::kAgrees) verdict = Verdict::kAgrees;
  }
  return verdict;
}

Rightness CallInvariance::rightness(const ReplayableCall& other_call, const RunOutcome& other,
                                    const Tensors* output_gradients) {
  const Tensors* const of_program = observed_.output_gradients;
  if (!program_verdict_) program_verdict_ = verdict_on(call_, observed_.outcome, of_program);
  return rightness_of(*program_verdict_,
                      verdict_on(other_call, other, output_gradients ? output_gradients : of_program));
}

}  // namespace op_tools
