#include "invariance/call_invariance.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "calls/random_state.h"
#include "compare/call_judge.h"
#include "compare/metrics/tolerance.h"
#include "hooks/op_traits.h"
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
    {"sequence", "the second dimension in pieces, or all sequences behind each other"},
    {"padding", "attention with more keys that the mask or the causal order leaves out"},
    {"pieces", "attention with its queries in pieces"},
}};

constexpr std::array<Token, static_cast<size_t>(Rightness::kCount)> kRightness{{
    {"unknown", "nothing says which of the two is right"},
    {"both right", "both are right within rounding"},
    {"program wrong", "the program's result is wrong, the other is right"},
    {"other wrong", "the program's result is right, the other is wrong"},
    {"both wrong", "both are wrong"},
}};

// The same elements and strides, an element further from an address that 64 divides: kernels begin, and end, with other
// elements beside those that they take several at once. Undefined: it stays where it is.
at::Tensor with_other_alignment(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor._is_zerotensor() || tensor.is_conj() ||
      tensor.is_neg() || tensor.numel() == 0 || tensor.dim() == 0 || !tensor.is_non_overlapping_and_dense()) {
    return {};
  }
  const int64_t places = std::max<int64_t>(1, 64 / static_cast<int64_t>(tensor.itemsize()));
  const int64_t offset = (tensor.storage_offset() + 1) % places;
  const at::Tensor memory = at::empty({tensor.numel() + offset}, tensor.options().requires_grad(false));
  const at::Tensor copy = memory.as_strided(tensor.sizes(), tensor.strides(), offset);
  copy.copy_(tensor.detach());
  return copy;
}

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
  if (options.sequence) relations.insert(relations.end(), {Relation::kSequence, Relation::kPadding, Relation::kPieces});
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
  if (relation == Relation::kPieces && !attention_) return;
  if (relation == Relation::kSequence && form_.why_not.empty() && form_.sequence == 0) return;
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
    case Relation::kSequence:
      return ask_sequence();
    case Relation::kPadding:
      return ask_padding();
    case Relation::kPieces:
      return ask_pieces();
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
  bool any = false;
  const ReplayableCall moved = call_.with_inputs([&](const at::Tensor& tensor) {
    at::Tensor copy = with_other_alignment(tensor);
    any = any || copy.defined();
    return copy;
  });
  if (!any) return;  // nothing that could lie elsewhere
  ask_whole(Relation::kMemory, moved, [](const std::function<void()>& run) { run(); });
}

void CallInvariance::ask_threads() {
  ask_whole(Relation::kThreads, call_, [](const std::function<void()>& run) {
    const OtherThreadCount threads;
    run();
  });
}

void CallInvariance::ask_stream() {
  if (devices_.size() > 1) return leave(Relation::kStream, Unjudged::kNoForm, "it runs on several devices");
  ask_whole(Relation::kStream, call_, [&](const std::function<void()>& run) {
    const OtherStream stream(devices_[0]);
    run();
    stream.wait();
  });
}

void CallInvariance::ask_whole(Relation relation, const ReplayableCall& call,
                               const std::function<void(const std::function<void()>&)>& around) {
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
  variation.transient = !repeats;
  vary(repeats ? relation : Relation::kRepeat, std::move(variation));
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
