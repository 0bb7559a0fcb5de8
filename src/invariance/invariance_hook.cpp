#include "invariance/invariance_hook.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "calls/call_meta.h"
#include "calls/random_state.h"
#include "compare/rerun/live_call.h"
#include "compare/rerun/program_errors.h"
#include "compare/rerun/replayable_call.h"
#include "compare/rerun/saved_run.h"
#include "hooks/call_sampling.h"
#include "hooks/op_traits.h"
#include "hooks/signature.h"
#include "hooks/value_source.h"
#include "tensor/plain_tensor.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

// A call before it ran; shared with its backward passes.
struct RunAgainState {
  std::unique_ptr<ReplayableCall> replayable;
  CallInfo call;
  CallMeta meta;  // for the files of a finding
  std::string device;
  Value random_states;
  std::vector<uintptr_t> alignments;

  bool is_on_cpu() const { return device == "cpu"; }
};

// most_share=: the time for runs again. It grows with the program's time, and every call that is run again takes its
// own off; a call waits until there is as much as such a call has taken in the mean. Any thread.
class TimeBudget {
 public:
  explicit TimeBudget(double share) : share_(share), last_(clock_now()) {}

  bool allows() {
    if (share_ == 0) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = clock_now();
    const double mean = calls_ > 0 ? spent_ / static_cast<double>(calls_) : 0;
    saved_ = std::min(saved_ + share_ * static_cast<double>(now - last_), std::max(mean, share_ * kMostSaved));
    last_ = now;
    return saved_ >= mean;
  }
  void call_begins() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
  }

  // Takes off the time from its beginning to its end.
  class Charge {
   public:
    explicit Charge(TimeBudget& budget) : budget_(budget), begin_(clock_now()) {}
    ~Charge() {
      std::lock_guard<std::mutex> lock(budget_.mutex_);
      const auto spent = static_cast<double>(clock_now() - begin_);
      budget_.saved_ -= spent;
      budget_.spent_ += spent;
    }
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

   private:
    TimeBudget& budget_;
    const int64_t begin_;
  };

 private:
  static constexpr double kMostSaved = 10e9;  // ns of the program: what an idle server saves is no burst later

  const double share_;
  std::mutex mutex_;
  int64_t last_, calls_ = 0;
  double saved_ = 0, spent_ = 0;  // ns
};

struct State final : LiveCall {
  CallBefore known;
  std::shared_ptr<RunAgainState> shared = std::make_shared<RunAgainState>();
};

struct BackwardState final : WatchedForBackward {
  BackwardState() : WatchedForBackward(InvarianceHook::kNames.tool) {}
  std::shared_ptr<RunAgainState> shared;
};

// Results whose bits say something: no scratch memory, and nothing that is the backend's own matter.
std::vector<bool> compared_results(OpCall& call, size_t count) {
  const std::string_view base = base_name(call.name);
  std::vector<bool> compared(count, true);
  for (size_t i = 0; i < count; ++i) {
    const int place = static_cast<int>(i);
    compared[i] = place != workspace_of(base) && !is_open_result(base, place, call.args(), call.kwargs());
  }
  return compared;
}

}  // namespace

struct InvarianceHook::Impl {
  explicit Impl(const ResolvedInvarianceOptions& options)
      : options(options),
        rank(distributed_rank()),
        report(this->options, rank),
        sampling(options.first_n_per_signature, options.every_nth),
        budget(options.most_share) {}

  const ResolvedInvarianceOptions options;
  const int64_t rank;
  InvarianceReport report;
  CallSampling sampling;
  TimeBudget budget;

  void forward(OpCall& call, State& state);
  void backward(OpCall& call);
};

InvarianceHook::InvarianceHook(const ResolvedInvarianceOptions& options) : impl_(std::make_unique<Impl>(options)) {}
InvarianceHook::~InvarianceHook() = default;

Wants InvarianceHook::wants() const {
  return {.gradients = impl_->options.gradients, .borrows_gradients = true, .device_values = true, .progress = true};
}

std::unique_ptr<HookState> InvarianceHook::before(OpCall& call) {
  if (call.phase == Phase::kBackward) return nullptr;  // after() has everything
  // A call that has to wait for its turn is not counted: the next of its kind may be run again.
  if (!impl_->budget.allows() || !impl_->sampling.admits(signature_of(call))) {
    impl_->report.left_out();
    call.decline();
    return nullptr;
  }
  impl_->budget.call_begins();
  const TimeBudget::Charge charge(impl_->budget);
  auto state = std::make_unique<State>();
  if (!state->take_inputs(kNames.tool, call)) return state;
  RunAgainState& shared = *state->shared;
  shared.call = CallInfo::of(call);
  shared.call.stack = call.stack();
  shared.call.module = call.module();
  state->known = {ProgramState::of(call), {}, call.module()};
  shared.replayable = std::make_unique<ReplayableCall>(call);
  shared.device = device_of_inputs(*shared.replayable);
  shared.alignments = alignments_of(state->live);
  state->watch = std::make_unique<RandomWatch>(call.args(), call.kwargs());
  return state;
}

void InvarianceHook::after(OpCall& call, HookState* state) {
  if (call.phase == Phase::kBackward) return impl_->backward(call);
  if (!state) return;
  const TimeBudget::Charge charge(impl_->budget);
  auto& mine = static_cast<State&>(*state);
  mine.rethrow_stop();
  impl_->forward(call, mine);
}

void InvarianceHook::Impl::forward(OpCall& call, State& state) {
  RunAgainState& shared = *state.shared;
  const auto none = [&](Unjudged why, const std::string& reason) {
    report.add(shared.call, shared.device, nothing_judged(options, shared.is_on_cpu(), why, reason));
  };
  shared.random_states = state.watch->moved();
  shared.meta = CallMeta::of(std::move(state.known), CallAfter::of(call, rank));
  shared.meta.stack = shared.call.stack;
  if (!call.error.empty()) return none(Unjudged::kRaised, "it raised: " + call.error);
  const std::vector<at::Tensor> results = flatten_tensors(call.result());
  for (const at::Tensor& tensor : results) {
    if (!tensor.device().is_cpu()) shared.device = tensor.device().str();
  }
  if (shared.replayable->in_transform()) {
    return none(Unjudged::kNoReference, "it ran inside a functorch transform, which runs again are not in");
  }
  if (shared.random_states.is<None>() && draws_unwatched(call, *state.watch)) {
    return none(Unjudged::kRandom, "random numbers of a generator that cannot be set back");
  }
  if (ResultSource::of(call).uninitialized || has_trait(base_name(call.name), OpTrait::kShowsUnwrittenMemory)) {
    return none(Unjudged::kUninitialized, "uninitialized memory");
  }
  if (shared.replayable->tensors().size() != state.live.size()) {
    return none(Unjudged::kNoForm, "an input has no plain copy");
  }
  const auto has_no_memory = [](const at::Tensor& input) { return input.defined() && input._is_zerotensor(); };
  if (std::any_of(state.live.begin(), state.live.end(), has_no_memory)) {
    return none(Unjudged::kNoForm, "an input is a zero tensor without memory, and its copy has memory");
  }
  wait_for_program(kNames.tool, results, "after", call);
  wait_for_program(kNames.tool, state.live, "after", call);
  ObservedRun observed;
  observed.random_states = shared.random_states;
  observed.alignments = shared.alignments;
  observed.compared = compared_results(call, results.size());
  RunOutcome& run = observed.outcome;
  run.result = call.result();
  run.inputs = state.live;
  run.written = state.written_inputs(*shared.replayable);
  run.record_memory(results, state.live);
  std::vector<RelationVerdict> verdicts = CallInvariance(*shared.replayable, call.name, observed, options).judge();
  if (!verdicts.empty()) {  // else it computes nothing that could be compared
    report.add(shared.call, shared.device, std::move(verdicts), [&] {
      SavedRun saved(*shared.replayable, shared.meta, shared.random_states);
      saved.add_results(*shared.replayable, run);
      return saved;
    });
  }
  if (options.gradients && call.level == Level::kTorch && shared.replayable->wants_gradients()) {
    auto backward_state = std::make_shared<BackwardState>();
    backward_state->shared = state.shared;
    for (const std::vector<at::Tensor>& tensors : {results, state.live}) {
      for (const at::Tensor& tensor : tensors) {
        backward_state->fingerprints.emplace_back(tensor, at::Tensor(), tensor);
      }
    }
    call.save_for_backward(std::move(backward_state));
  }
}

void InvarianceHook::Impl::backward(OpCall& call) {
  auto* state = static_cast<BackwardState*>(call.saved_state());
  if (!state || !call.error.empty()) return;
  const TimeBudget::Charge charge(budget);
  const RunAgainState& shared = *state->shared;
  CallInfo info = shared.call;
  info.phase = Phase::kBackward;
  info.pass = call.pass;
  info.step = call.step;
  for (const Value& values : {call.args(), call.result()}) {
    wait_for_program(kNames.tool, flatten_tensors(values), "after the backward of", call);
  }
  if (call.incomplete) {
    return report.add(info, shared.device,
                      nothing_judged(options, shared.is_on_cpu(), Unjudged::kNoReference,
                                     "the pass ended before every gradient had come"));
  }
  const std::vector<at::Tensor> output_gradients = tensors_in(call.args());
  ObservedRun observed;
  observed.random_states = shared.random_states;
  observed.alignments = shared.alignments;
  observed.output_gradients = &output_gradients;
  observed.outcome.gradients = tensors_in(call.result());
  std::vector<RelationVerdict> verdicts =
      CallInvariance(*shared.replayable, shared.call.name, observed, options).judge();
  const auto differs = [](const RelationVerdict& verdict) { return verdict.verdict == Verdict::kDiffers; };
  if (std::any_of(verdicts.begin(), verdicts.end(), differs) && state->is_changed()) {
    verdicts = nothing_judged(options, shared.is_on_cpu(), Unjudged::kNoReference,
                              "an input or result of the forward call was changed since, past autograd");
  }
  if (std::any_of(verdicts.begin(), verdicts.end(), differs) && shared.replayable->has_packed_tensors()) {
    verdicts = nothing_judged(options, shared.is_on_cpu(), Unjudged::kUndetermined, ReplayableCall::kPackedTensors);
  }
  if (verdicts.empty()) return;
  report.add(info, shared.device, std::move(verdicts), [&] {
    SavedRun saved(*shared.replayable, shared.meta, shared.random_states);
    saved.add_backward(output_gradients, observed.outcome.gradients, false);
    return saved;
  });
}

void InvarianceHook::flush() {
  impl_->report.flush();
}

void InvarianceHook::scope_left() {
  flush();
  impl_->report.summarize();
}

InvarianceResult InvarianceHook::result() const {
  return impl_->report.result();
}

void InvarianceHook::add_coverage(Coverage& account) const {
  const InvarianceResult summary = result();
  account.judged += summary.kept.total() + summary.varied.total();
  account.not_judged = summary.unjudged;
  account.lost[Loss::kLimits] += summary.left_out;
  account.devices = summary.devices;
}

std::string InvarianceHook::folder() const {
  return result().root;
}

Value InvarianceHook::report() const {
  return to_value(result());
}

}  // namespace op_tools
