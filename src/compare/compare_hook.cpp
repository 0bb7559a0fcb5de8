#include "compare/compare_hook.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/stop_program.h"
#include "calls/random_state.h"
#include "compare/distribution_test.h"
#include "compare/memory_beside.h"
#include "compare/metrics/tolerance.h"
#include "compare/ordered_pool.h"
#include "compare/pending_comparison.h"
#include "compare/rerun/live_call.h"
#include "compare/rerun/program_errors.h"
#include "hooks/backward_frame.h"
#include "hooks/backward_pass.h"
#include "hooks/call_sampling.h"
#include "hooks/graph_frame.h"
#include "hooks/op_traits.h"
#include "hooks/signature.h"
#include "hooks/stack_source.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

constexpr const char* kChangedSince =
    "an input or result of the forward call was changed before this backward or in it, past autograd: look for who did "
    "that";

// nullptr: the call is no compiled graph.
const GraphFrame* graph_frame_of(OpCall& call) {
  return call.is_graph ? dynamic_cast<const GraphFrame*>(&call.frame()) : nullptr;
}

// Results of the call before of a compiled graph, which the program still holds and which are no inputs of this call:
// this call must not write their memory.
class EarlierResults {
 public:
  void take(OpCall& call) {
    const auto* const frame = graph_frame_of(call);
    if (!frame) return;
    std::vector<c10::StorageImpl*> of_inputs;
    call.frame().visit_inputs([&](const at::Tensor& input) {
      if (input.has_storage()) of_inputs.push_back(input.storage().unsafeGetStorageImpl());
    });
    const std::vector<at::Tensor>& held = frame->held_results();
    for (size_t i = 0; i < held.size(); ++i) {
      std::string type;
      if (!held[i].defined() || !held[i].has_storage() || !why_not_plain(held[i], &type).empty()) continue;
      const auto* const storage = held[i].storage().unsafeGetStorageImpl();
      if (std::find(of_inputs.begin(), of_inputs.end(), storage) != of_inputs.end()) continue;
      all_.push_back({i, held[i], bits_of(held[i])});
    }
  }

  // The numbers of those that changed since.
  std::vector<size_t> changed() const {
    std::vector<size_t> numbers;
    for (const Result& result : all_) {
      if (bits_of(result.tensor) != result.bits) numbers.push_back(result.number);
    }
    return numbers;
  }

 private:
  struct Result {
    size_t number;
    at::Tensor tensor;
    uint64_t bits;
  };
  std::vector<Result> all_;
};

struct CompareState final : LiveCall {
  std::shared_ptr<ComparedState> compared;
  CallBefore known;  // without stack: that of the rows is longer
  EarlierResults earlier;
  MemoryBeside beside;
};

Check overwritten(size_t number) {
  return {"",
          differs("overwritten", "it wrote the memory of result " + std::to_string(number) +
                                     " of the call before, which the program still holds"),
          {}};
}

struct BackwardState final : WatchedForBackward {
  BackwardState() : WatchedForBackward(CompareHook::kNames.tool) {}
  std::shared_ptr<ComparedState> compared;
};

}  // namespace

struct CompareHook::Impl {
  explicit Impl(const ResolvedCompareOptions& options)
      : options(options),
        rank(distributed_rank()),
        tolerances(ToleranceTable::from_environment()),
        report(options, rank),
        sampling(options.first_n_per_signature, options.every_nth),
        pool(static_cast<size_t>(options.workers.get()), static_cast<size_t>(options.max_pending_mb << 20)) {}

  const ResolvedCompareOptions options;
  const int64_t rank;
  const ToleranceTable tolerances;
  CompareReport report;
  std::atomic<bool> left{false};  // no scope waits for the workers any more

  CallSampling sampling;
  OrderedPool pool;  // last: its work uses the above

  CallFacts facts_of(const ComparedState& compared) const;
  bool is_judged_at_once(const CallFacts& facts) const;
  // Writes the verdicts to the report; returns the message about a failure, empty when there is none.
  using Report = std::function<std::string()>;
  // Runs the references and judges.
  Report judged(const std::shared_ptr<PendingComparison>& observed);
  // Without `report_now`: judges and reports later, on another thread.
  void finish(std::shared_ptr<PendingComparison> observed, const Report& report_now);
  std::vector<Check> checks_of(const PendingComparison& observed, CallJudge& judge) const;
  void forward(OpCall& call, CompareState& state);
  void backward(OpCall& call);
};

CompareHook::CompareHook(const ResolvedCompareOptions& options) : impl_(std::make_unique<Impl>(options)) {}
CompareHook::~CompareHook() = default;

Wants CompareHook::wants() const {
  return {.gradients = impl_->options.gradients,
          .borrows_gradients = true,
          .failed_backward = impl_->options.gradients,
          .gradient_sums = impl_->options.gradients,
          .graphs = true,
          .device_values = true};
}

std::unique_ptr<HookState> CompareHook::before(OpCall& call) {
  if (call.phase == Phase::kBackward) return nullptr;  // after() has everything
  const uint64_t signature = signature_of(call);
  if (!impl_->sampling.admits(signature)) {
    impl_->report.left_out();
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<CompareState>();
  if (!state->take_inputs(kNames.tool, call)) return state;
  state->compared = std::make_shared<ComparedState>();
  ComparedState& compared = *state->compared;
  compared.is_graph = call.is_graph;
  if (const GraphFrame* const frame = graph_frame_of(call)) compared.graph = frame->traits();
  static_cast<CallInfo&>(compared.call) = CallInfo::of(call);
  compared.call.signature = signature;
  compared.call.stack = call.stack();
  state->known = {ProgramState::of(call), {}, call.module()};
  if (log::enabled(log::Level::kInfo)) {
    compared.call.inputs = "{'args': " + describe(call.args()) + ", 'kwargs': " + describe(call.kwargs()) + "}";
  }
  compared.replayable = std::make_unique<ReplayableCall>(call);
  compared.call.device = device_of_inputs(*compared.replayable);
  state->earlier.take(call);
  state->beside.take(call, state->live);
  state->watch = std::make_unique<RandomWatch>(call.args(), call.kwargs());
  return state;
}

void CompareHook::after(OpCall& call, HookState* state) {
  if (call.phase == Phase::kBackward) return impl_->backward(call);
  if (!state) return;
  auto& mine = static_cast<CompareState&>(*state);
  mine.rethrow_stop();
  impl_->forward(call, mine);
}

CallFacts CompareHook::Impl::facts_of(const ComparedState& compared) const {
  CallFacts facts = op_tools::facts_of(*compared.replayable, compared.call.name);
  facts.options.method = options.method;
  facts.options.tolerances = &tolerances;
  facts.options.golden = options.golden;
  facts.options.nan_equal = options.nan_equal;
  facts.options.strides = options.strides;
  facts.pass.of_graph = compared.is_graph;
  facts.pass.graph = compared.graph;
  facts.device.alone = facts.device.alone && !compared.is_graph;
  const bool is_on_cuda = compared.call.device.starts_with("cuda");
  facts.device.tf32 = is_on_cuda && multiplies_in_tf32(facts.name, compared.meta.state.process);
  facts.device.approximated = is_on_cuda && has_trait(base_name(facts.name), OpTrait::kApproximatedByCudnn);
  facts.random.drawn = compared.random;
  // Compilers draw in an order of their own.
  facts.random.repeatable = only_cpu_state(compared.random_state) != nullptr && !compared.is_graph;
  facts.pass.goes_backward =
      options.gradients && compared.call.level == Level::kTorch && compared.replayable->wants_gradients();
  return facts;
}

// Runs that draw random numbers use the program's generator, which the program must not use meanwhile.
bool CompareHook::Impl::is_judged_at_once(const CallFacts& facts) const {
  return !options.async || facts.random.drawn || left.load();
}

namespace {

// Where the results are: which device the call ran on, and whether it copied to another device.
void look_at_devices(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& live,
                     PendingComparison& observed) {
  note_result_devices(results, live, &observed.facts);
  for (const at::Tensor& tensor : results) {
    if (tensor.device().is_cpu()) continue;
    observed.facts.device.alone = false;  // made on a device: torch.zeros(3, device="cuda")
    observed.call.device = tensor.device().str();
  }
}

// The values of the run: the program's own where they are judged before the program goes on, else copies.
void take_values(OpCall& call, const CompareState& state, size_t result_count, PendingComparison& observed) {
  RunOutcome& run = observed.run;
  if (observed.at_once) {
    run.result = call.result();
    run.inputs = state.live;
    for (at::Tensor& input : run.inputs) {
      std::string type;
      if (!input.is_cpu() && !why_not_copied(input, &type).empty()) input.reset();
    }
    return;
  }
  observed.snapshot = take_snapshot(make_tuple({call.result(), list_of(state.live)}), "");
  const Values& copies = *sequence_items(observed.snapshot.value);
  run.result = copies[0];
  run.inputs = tensors_in(copies[1]);
  auto& outputs = observed.state->meta.outputs;
  outputs = observed.snapshot.tensors;
  if (outputs.size() > result_count) {
    outputs.erase(outputs.begin() + static_cast<std::ptrdiff_t>(result_count), outputs.end());
  }
}

}  // namespace

void CompareHook::Impl::forward(OpCall& call, CompareState& state) {
  ComparedState& compared = *state.compared;
  compared.random_state = state.watch->moved();
  compared.random = !compared.random_state.is<None>() || draws_unwatched(call, *state.watch);
  compared.meta = CallMeta::of(std::move(state.known), CallAfter::of(call, rank));
  compared.meta.stack = compared.call.stack;
  compared.call.module = compared.meta.module;

  auto observed = std::make_shared<PendingComparison>();
  observed->state = state.compared;
  observed->call = compared.call;
  observed->facts = facts_of(compared);
  observed->facts.pass.in_backward = phase_of(call) == Phase::kBackward;
  observed->at_once = is_judged_at_once(observed->facts);
  RunOutcome& run = observed->run;
  run.raised = call.error;
  run.written = state.written_inputs(*compared.replayable);
  const std::vector<at::Tensor> results = flatten_tensors(call.result());
  if (run.raised.empty()) wait_for_program(kNames.tool, results, "after", call);
  wait_for_program(kNames.tool, state.live, "after", call);
  run.record_memory(results, state.live);
  look_at_devices(results, state.live, *observed);
  observed->overwritten = state.earlier.changed();
  if (call.error.empty()) observed->written_beside = state.beside.changes();
  if (log::enabled(log::Level::kInfo)) observed->call.outputs = describe(call.result());
  take_values(call, state, results.size(), *observed);
  observed->bytes = observed->snapshot.bytes + compared.replayable->bytes();
  const Report report_now = observed->at_once ? judged(observed) : nullptr;
  if (options.gradients && call.level == Level::kTorch && call.error.empty() &&
      compared.replayable->wants_gradients()) {
    auto backward_state = std::make_shared<BackwardState>();
    backward_state->compared = state.compared;
    backward_state->fingerprints = remember(*observed, results, state.live);
    call.save_for_backward(std::move(backward_state));
  }
  finish(std::move(observed), report_now);
}

void CompareHook::Impl::backward(OpCall& call) {
  auto* state = static_cast<BackwardState*>(call.saved_state());
  if (!state) return;
  auto observed = std::make_shared<PendingComparison>();
  observed->state = state->compared;
  observed->call = state->compared->call;
  observed->fingerprints = state->fingerprints;
  observed->call.phase = Phase::kBackward;
  observed->call.pass = call.pass;
  observed->call.step = call.step;
  observed->facts = facts_of(*state->compared);
  observed->facts.pass.incomplete = call.incomplete;
  observed->at_once = is_judged_at_once(observed->facts);
  observed->run.raised = call.error;
  const auto* const gradients = dynamic_cast<const GradientsInGraph*>(&call.frame());
  if (gradients && observed->facts.pass.of_graph) observed->run.gradients_in_graph = gradients->in_graph();
  for (const Value& values : {call.args(), call.result()}) {
    wait_for_program(kNames.tool, flatten_tensors(values), "after the backward of", call);
  }
  if (observed->at_once) {
    // Read here and now: only tensors elsewhere have to be copied.
    observed->snapshot = take_snapshot(make_tuple({call.args()}), "", /*owned=*/true);
    if (call.error.empty()) observed->run.gradients = tensors_in(call.result());
  } else {
    observed->snapshot = take_snapshot(make_tuple({call.args(), call.result()}), "", call.owns_values);
    if (call.error.empty()) observed->run.gradients = tensors_in((*sequence_items(observed->snapshot.value))[1]);
  }
  observed->output_gradients = tensors_in((*sequence_items(observed->snapshot.value))[0]);
  if (log::enabled(log::Level::kInfo)) {
    observed->call.inputs = describe(call.args());
    observed->call.outputs = describe(call.result());
  }
  observed->bytes = observed->snapshot.bytes;
  const Report report_now = observed->at_once ? judged(observed) : nullptr;
  finish(std::move(observed), report_now);
}

std::vector<Check> CompareHook::Impl::checks_of(const PendingComparison& observed, CallJudge& judge) const {
  if (observed.call.phase == Phase::kBackward) return judge.gradients();
  std::vector<Check> checks = judge.forward();
  for (const size_t number : observed.overwritten) checks.push_back(overwritten(number));
  if (!observed.written_beside.empty()) checks.push_back(MemoryBeside::check(observed.written_beside));
  return checks;
}

CompareHook::Impl::Report CompareHook::Impl::judged(const std::shared_ptr<PendingComparison>& observed) {
  const ComparedState& compared = *observed->state;
  const bool backward = observed->call.phase == Phase::kBackward;
  const at::Tensor* state = only_cpu_state(compared.random_state);
  const bool beside = !observed->at_once;
  const RunAgain again = [&](const RunVariant& variant) {
    if (backward) {
      if (auto forward = observed->state->cached_runs.take(variant)) {
        return compared.replayable->backward(std::move(*forward), variant, observed->output_gradients);
      }
      return compared.replayable->run(variant, &observed->output_gradients, state, beside);
    }
    RunOutcome run = compared.replayable->run(variant, nullptr, state, beside);
    const bool goes_backward = run.returned() && options.gradients && compared.replayable->wants_gradients();
    const bool is_read_again = !variant.changes_inputs() && variant.kind != RunVariant::Kind::kUnwritten;
    if (goes_backward && observed->at_once && is_read_again) {
      observed->state->cached_runs.add(variant, run, compared.replayable->bytes());
    }
    return run;
  };
  CallJudge judge(observed->facts, observed->run, again);
  std::vector<Check> checks;
  try {
    checks = checks_of(*observed, judge);
  } catch (const std::exception& error) {
    checks = {
        {"", not_judged(Unjudged::kJudgeFailed, std::string("the comparison failed: ") + exception_text(error)), {}}};
  }
  const auto fails = [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; };
  if (std::any_of(checks.begin(), checks.end(), fails) &&
      std::any_of(observed->fingerprints.begin(), observed->fingerprints.end(),
                  [](const TensorFingerprint& fingerprint) { return fingerprint.changed_past_autograd(); })) {
    for (Check& check : checks) {
      if (fails(check)) check.judgement.reason = kChangedSince;
    }
  }
  if (backward && compared.replayable->has_packed_tensors()) {
    for (Check& check : checks) {
      if (fails(check)) check.judgement = not_judged(Unjudged::kUndetermined, ReplayableCall::kPackedTensors);
    }
  }
  const auto by_bits = [](const Check& check) { return check.judgement.deciding == Deciding::kBits; };
  std::shared_ptr<RunOutcome> reference;
  if (auto run = judge.take_reference()) reference = std::make_shared<RunOutcome>(std::move(*run));
  if (!backward && reference && !checks.empty() && std::all_of(checks.begin(), checks.end(), by_bits)) {
    observed->same_results = flatten_tensors(reference->result);
  }
  return [this, observed, checks = std::move(checks), reference] {
    const RunOutcome* other_side = observed->facts.has_no_reference() ? nullptr : reference.get();
    return report.add(observed->call, checks, [&] { return sides_of(*observed, other_side); });
  };
}

void CompareHook::Impl::finish(std::shared_ptr<PendingComparison> observed, const Report& report_now) {
  if (!report_now) {
    const size_t bytes = observed->bytes;
    return pool.submit(bytes, [this, observed = std::move(observed)] {
      const InternalGuard ours;
      return OrderedPool::Commit([later = judged(observed)] { later(); });
    });
  }
  const std::string failure = report_now();
  if (!failure.empty() && options.raise_on_failure) throw StopProgram("OpAutoCompare: " + failure);
}

void CompareHook::flush() {
  impl_->pool.flush();
  impl_->report.flush();
}

void CompareHook::scope_left() {
  impl_->left.store(true);
  flush();
  impl_->report.summarize();
}

CompareResult CompareHook::result() const {
  return impl_->report.result();
}

const Columns<CompareResult::Op>& CompareResult::Op::columns() {
  static const Columns<Op> all{
      "ComparedOp",
      "The judged tensors of an operator: outputs, changed inputs, input gradients.",
      {
          {"op", &Op::op, "the operator"},
          {"calls", &Op::calls, "forward calls"},
          {"backward", &Op::backward, "backward passes"},
          {"passed", &Op::passed, "outputs, changed inputs and input gradients that are right"},
          {"failed", &Op::failed, "that are wrong"},
          {"not_judged", &Op::not_judged, "comparisons without a verdict"},
          {"worst", &Op::worst, "the largest share of a limit that was reached; 1 is the limit"},
          {"reason", &Op::reason, "of the first failure; else why something was not judged"},
          {"source", &Op::source, "the user's line of the first failure"},
      }};
  return all;
}

void CompareHook::add_coverage(Coverage& account) const {
  const CompareResult summary = result();
  // A graph whose results mostly have no verdict (random numbers in it) was not looked into.
  account.graphs = static_cast<uint64_t>(std::count_if(summary.ops.begin(), summary.ops.end(), [](const auto& op) {
    return is_graph_call(op.op) && op.passed + op.failed > op.not_judged;
  }));
  account.judged += summary.passed + summary.failed;
  account.not_judged = summary.unjudged;
  account.lost[Loss::kLimits] += summary.left_out;
  account.wide_limits += summary.wide_limits;
  account.devices = summary.devices;
}

std::string CompareHook::folder() const {
  return result().root;
}

std::string CompareHook::claim_folder() {
  return impl_->report.claim_folder();
}

Value CompareHook::report() const {
  const CompareResult summary = result();
  const auto number = [](uint64_t value) { return Value(static_cast<int64_t>(value)); };
  std::vector<std::pair<Value, Value>> reasons;
  for (const auto& [reason, count] : summary.reasons) reasons.emplace_back(reason, number(count));
  return make_dict({{"rows", impl_->report.rows()},
                    {"ops", Row::columns().values(summary.ops)},
                    {"calls", number(summary.calls)},
                    {"passed", number(summary.passed)},
                    {"failed", number(summary.failed)},
                    {"not_judged", number(summary.not_judged)},
                    {"reasons", make_dict(std::move(reasons))},
                    {"unjudged", summary.unjudged_text()},
                    {"left_out", number(summary.left_out)},
                    {"saved", number(summary.saved)},
                    {"not_saved", number(summary.not_saved)},
                    {"rows_dropped", number(summary.rows_dropped)},
                    {"root", summary.root},
                    {"failure", summary.failure}});
}

}  // namespace op_tools
