#include "compare/compare_hook.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "calls/call_files.h"
#include "calls/random_state.h"
#include "compare/metrics/distribution_test.h"
#include "compare/metrics/tolerance.h"
#include "compare/ordered_pool.h"
#include "compare/pending_comparison.h"
#include "hooks/backward_pass.h"
#include "hooks/held_in_backward.h"
#include "hooks/op_traits.h"
#include "hooks/signature.h"
#include "hooks/stack_source.h"
#include "hooks/stop_program.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

constexpr const char* kChangedSince =
    "what the forward call read or gave was changed before this backward or in it, past autograd: look for who did "
    "that";

struct CompareState final : HookState {
  std::shared_ptr<ComparedState> subject;
  std::vector<at::Tensor> live;   // the program's input tensors
  std::vector<int64_t> versions;  // before the call
  std::unique_ptr<RandomWatch> watch;
  std::exception_ptr stop;  // an error of the program's that came to light before the call; nothing else is set then
};

struct KeptSubject final : HookState, HeldInBackward {
  std::shared_ptr<ComparedState> subject;
  std::vector<TensorFingerprint> remembered;

  // Was it changed? That is asked at the end of the pass, and only of what is wrong.
  std::shared_ptr<void> hold() const override {
    auto held = std::make_shared<std::vector<c10::Storage>>();
    for (const TensorFingerprint& one : remembered) held->push_back(one.memory());
    return held;
  }
};

// A call's tensors are about to be read, which waits for their devices: what a device then reports went wrong in the
// program's own work. The program is to see it, unchanged.
void wait_for_program(const std::vector<at::Tensor>& tensors, std::string_view when, const OpCall& call) {
  std::optional<c10::Device> last;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta() || last == tensor.device()) continue;
    last = tensor.device();
    try {
      wait_for_device(*last);
    } catch (const std::exception& error) {
      std::string text = "OpAutoCompare: an error of the program's own came to light when " + last->str() +
                         " was waited for " + std::string(when) + " " + std::string(call.name) + " (call " +
                         std::to_string(call.id);
      if (const auto stack = current_stack(); !stack.empty()) text += ", " + stack.front();
      text += "), and is passed on: ";
      log::error(text + exception_text(error));
      throw StopProgram(text, std::current_exception());
    }
  }
}

const at::Tensor* cpu_state(const ComparedState& subject) {
  const Value* state = find_key(subject.random_state, "cpu");
  return state ? state->get_if<at::Tensor>() : nullptr;
}

// All generators that moved were the CPU's: a run that starts from its state draws the same numbers.
bool only_cpu_moved(const Value& moved) {
  const auto* dict = moved.get_if<Dict>();
  return dict && dict->items->size() == 1 && find_key(moved, "cpu");
}

std::vector<at::Tensor> tensors_in(const Value& list) {
  std::vector<at::Tensor> tensors;
  for (const Value& item : *sequence_items(list)) {
    const auto* tensor = item.get_if<at::Tensor>();
    tensors.push_back(tensor ? *tensor : at::Tensor());
  }
  return tensors;
}

bool is_tagged_random(const OpCall& call) {
  return call.op && call.op->hasTag(at::Tag::nondeterministic_seeded);
}

}  // namespace

struct CompareHook::Impl {
  explicit Impl(const ResolvedCompareOptions& options)
      : options(options),
        rank(distributed_rank()),
        tolerances(ToleranceTable::from_environment()),
        told(options, rank),
        pool(static_cast<size_t>(options.workers), static_cast<size_t>(options.max_pending_bytes)) {}

  const ResolvedCompareOptions options;
  const int64_t rank;
  const ToleranceTable tolerances;
  CompareReport told;
  std::atomic<bool> left{false};  // no scope waits for the workers any more

  std::mutex mutex;  // guards what follows
  std::unordered_map<uint64_t, int64_t> per_signature;

  OrderedPool pool;  // last: its work uses the above

  bool within_limits(uint64_t signature) {
    if (!options.first_n_per_signature && options.every_nth == 1) return true;
    std::lock_guard<std::mutex> lock(mutex);
    const int64_t number = per_signature[signature]++;
    if (options.first_n_per_signature && number >= *options.first_n_per_signature) return false;
    return number % options.every_nth == 0;
  }

  CallFacts facts_of(const ComparedState& subject) const;
  bool is_judged_at_once(const CallFacts& facts) const;
  // Tells what was judged, and returns what a user is told of a failure.
  using Tell = std::function<std::string()>;
  // Runs the references and judges.
  Tell judged(const std::shared_ptr<PendingComparison>& observed);
  // Without `tell`: judges and tells later.
  void finish(std::shared_ptr<PendingComparison> observed, const Tell& tell);
  std::vector<Check> checks_of(const PendingComparison& observed, CallJudge& judge) const;
  void forward(OpCall& call, CompareState& state);
  void backward(OpCall& call);
};

CompareHook::CompareHook(const ResolvedCompareOptions& options) : impl_(std::make_unique<Impl>(options)) {}
CompareHook::~CompareHook() = default;

Wants CompareHook::wants() const {
  return {.gradients = impl_->options.gradients, .aten_call = false};
}

std::unique_ptr<HookState> CompareHook::before(OpCall& call) {
  if (call.phase == Phase::kBackward) return nullptr;  // after() has everything
  const uint64_t signature = signature_of(call);
  if (!impl_->within_limits(signature)) {
    impl_->told.left_out();
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<CompareState>();
  state->live = flatten_tensors(make_tuple({call.args(), call.kwargs()}));
  try {
    wait_for_program(state->live, "before", call);
  } catch (const StopProgram&) {
    state->stop = std::current_exception();  // the program is stopped after its call
    return state;
  }
  state->subject = std::make_shared<ComparedState>();
  ComparedState& subject = *state->subject;
  static_cast<CallInfo&>(subject.call) = CallInfo::of(call);
  subject.call.signature = signature;
  subject.call.stack = current_stack();
  subject.call.module = call.module();
  subject.meta.state = ProgramState::of(call);
  for (const at::Tensor& tensor : state->live) state->versions.push_back(version_of(tensor));
  if (log::enabled(log::Level::kInfo)) {
    subject.call.inputs = "{'args': " + describe(call.args()) + ", 'kwargs': " + describe(call.kwargs()) + "}";
  }
  subject.specimen = std::make_unique<ReplayableCall>(call);
  subject.call.device = "cpu";
  for (const TensorMeta& facts : subject.specimen->inputs().tensors) {
    if (!facts.device.is_cpu()) subject.call.device = facts.device.str();
  }
  // Last, so that nothing of ours comes between the generator's state and the call.
  state->watch = std::make_unique<RandomWatch>(call.args(), call.kwargs());
  return state;
}

void CompareHook::after(OpCall& call, HookState* state) {
  if (call.phase == Phase::kBackward) return impl_->backward(call);
  if (!state) return;
  auto& mine = static_cast<CompareState&>(*state);
  if (mine.stop) std::rethrow_exception(mine.stop);
  impl_->forward(call, mine);
}

CallFacts CompareHook::Impl::facts_of(const ComparedState& subject) const {
  CallFacts facts;
  facts.name = subject.call.name;
  facts.method = options.method;
  facts.tolerances = &tolerances;
  facts.golden = options.golden;
  facts.nan_equal = options.nan_equal;
  facts.strides = options.strides;
  facts.alone = subject.specimen->all_on_cpu();
  facts.autocast = subject.specimen->autocast();
  facts.names_device = subject.specimen->names_device();
  facts.random = subject.random;
  facts.in_transform = subject.specimen->in_transform();
  facts.repeatable = only_cpu_moved(subject.random_state);
  facts.goes_backward = options.gradients && subject.call.level == Level::kTorch && subject.specimen->wants_gradients();
  const Values& in = *sequence_items(subject.specimen->inputs().value);
  facts.args = in[0];
  facts.kwargs = in[1];
  facts.before = subject.specimen->tensors();
  return facts;
}

// Runs that draw random numbers borrow the program's generator, which the program must not use meanwhile.
bool CompareHook::Impl::is_judged_at_once(const CallFacts& facts) const {
  return !options.async || facts.random || left.load();
}

void CompareHook::Impl::forward(OpCall& call, CompareState& state) {
  ComparedState& subject = *state.subject;
  subject.random_state = state.watch->moved();
  subject.random =
      !subject.random_state.is<None>() || is_tagged_random(call) || draws_random_numbers(base_name(call.name));
  CallMeta& meta = subject.meta;
  static_cast<CallInfo&>(meta) = subject.call;
  meta.rank = rank;
  meta.schema = schema_text(call.op, meta.name);
  meta.random = !subject.random_state.is<None>();
  meta.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  meta.inputs = subject.specimen->inputs().tensors;

  auto observed = std::make_shared<PendingComparison>();
  observed->subject = state.subject;
  observed->call = subject.call;
  observed->facts = facts_of(subject);
  observed->facts.in_backward = phase_of(call) == Phase::kBackward;
  observed->at_once = is_judged_at_once(observed->facts);
  RunOutcome& run = observed->run;
  run.raised = call.error;
  const std::vector<bool> by_schema = written_by_schema(call);
  for (size_t i = 0; i < state.live.size(); ++i) {
    run.written.push_back((i < by_schema.size() && by_schema[i]) || version_of(state.live[i]) != state.versions[i]);
  }
  const std::vector<at::Tensor> results = flatten_tensors(call.result());
  if (run.raised.empty()) wait_for_program(results, "after", call);
  wait_for_program(state.live, "after", call);
  run.aliases = shared_memory(results, state.live);
  bool result_on_cpu = true;
  for (const at::Tensor& tensor : results) {
    const bool strided = tensor.layout() == at::kStrided && !tensor.is_nested();
    run.strides.push_back(strided ? own_strides(tensor).vec() : std::vector<int64_t>());
    // x.cpu() and x.to(other) copy, and with everything on the CPU give x itself.
    const auto elsewhere = [&](const at::Tensor& input) { return input.device() != tensor.device(); };
    if (std::any_of(state.live.begin(), state.live.end(), elsewhere)) observed->facts.names_device = true;
    if (tensor.device().is_cpu()) continue;
    result_on_cpu = false;
    observed->call.device = tensor.device().str();
  }
  if (!result_on_cpu) observed->facts.alone = false;  // made on a device: torch.zeros(3, device="cuda")
  if (log::enabled(log::Level::kInfo)) observed->call.outputs = describe(call.result());
  if (observed->at_once) {
    run.result = call.result();
    run.inputs = state.live;
    for (at::Tensor& input : run.inputs) {
      std::string type;
      if (!input.is_cpu() && !why_not_plain(input, &type).empty()) input.reset();
    }
  } else {
    observed->kept = take_snapshot(make_tuple({call.result(), list_of(state.live)}), "");
    const Values& copies = *sequence_items(observed->kept.value);
    run.result = copies[0];
    run.inputs = tensors_in(copies[1]);
    subject.meta.outputs = observed->kept.tensors;
    if (subject.meta.outputs.size() > results.size()) {
      subject.meta.outputs.erase(subject.meta.outputs.begin() + static_cast<std::ptrdiff_t>(results.size()),
                                 subject.meta.outputs.end());
    }
  }
  observed->bytes = observed->kept.bytes + subject.specimen->bytes();
  const Tell tell = observed->at_once ? judged(observed) : nullptr;
  if (options.gradients && call.level == Level::kTorch && call.error.empty() && subject.specimen->wants_gradients()) {
    auto kept = std::make_shared<KeptSubject>();
    kept->subject = state.subject;
    kept->remembered = remember(*observed, results, state.live);
    call.keep(std::move(kept));
  }
  finish(std::move(observed), tell);
}

void CompareHook::Impl::backward(OpCall& call) {
  auto* kept = static_cast<KeptSubject*>(call.kept());
  if (!kept) return;
  auto observed = std::make_shared<PendingComparison>();
  observed->subject = kept->subject;
  observed->call = kept->subject->call;
  observed->remembered = kept->remembered;
  observed->call.phase = Phase::kBackward;
  observed->call.pass = call.pass;
  observed->call.step = call.step;
  observed->facts = facts_of(*kept->subject);
  observed->facts.incomplete = call.incomplete;
  observed->at_once = is_judged_at_once(observed->facts);
  for (const Value& values : {call.args(), call.result()}) {
    wait_for_program(flatten_tensors(values), "after the backward of", call);
  }
  if (observed->at_once) {
    // Read here and now: only what is elsewhere has to be copied.
    observed->kept = take_snapshot(make_tuple({call.args()}), "", /*owned=*/true);
    observed->run.gradients = tensors_in(call.result());
  } else {
    observed->kept = take_snapshot(make_tuple({call.args(), call.result()}), "", call.owns_values);
    observed->run.gradients = tensors_in((*sequence_items(observed->kept.value))[1]);
  }
  observed->output_gradients = tensors_in((*sequence_items(observed->kept.value))[0]);
  if (log::enabled(log::Level::kInfo)) {
    observed->call.inputs = describe(call.args());
    observed->call.outputs = describe(call.result());
  }
  observed->bytes = observed->kept.bytes;
  const Tell tell = observed->at_once ? judged(observed) : nullptr;
  finish(std::move(observed), tell);
}

std::vector<Check> CompareHook::Impl::checks_of(const PendingComparison& observed, CallJudge& judge) const {
  return observed.call.phase == Phase::kForward ? judge.forward() : judge.gradients();
}

CompareHook::Impl::Tell CompareHook::Impl::judged(const std::shared_ptr<PendingComparison>& observed) {
  const ComparedState& subject = *observed->subject;
  const bool backward = observed->call.phase == Phase::kBackward;
  const at::Tensor* state = observed->facts.repeatable ? cpu_state(subject) : nullptr;
  const CallJudge::RunAgain again = [&](const RunVariant& variant) {
    if (backward) {
      if (auto forward = observed->subject->kept.take(variant)) {
        return subject.specimen->backward(std::move(*forward), variant, observed->output_gradients);
      }
      return subject.specimen->run(variant, &observed->output_gradients, state);
    }
    RunOutcome run = subject.specimen->run(variant, nullptr, state);
    const bool goes_backward = run.returned() && options.gradients && subject.specimen->wants_gradients();
    if (goes_backward && observed->at_once && !variant.changes_inputs()) {
      observed->subject->kept.keep(variant, run, subject.specimen->bytes());
    }
    return run;
  };
  CallJudge judge(observed->facts, observed->run, again);
  std::vector<Check> checks;
  try {
    checks = checks_of(*observed, judge);
  } catch (const std::exception& error) {
    checks = {{"", not_comparable(std::string("the comparison failed: ") + error.what()), {}}};
  }
  const auto fails = [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; };
  if (std::any_of(checks.begin(), checks.end(), fails) &&
      std::any_of(observed->remembered.begin(), observed->remembered.end(),
                  [](const TensorFingerprint& one) { return one.changed_past_autograd(); })) {
    for (Check& check : checks) {
      if (fails(check)) check.judgement.reason = kChangedSince;
    }
  }
  const auto by_bits = [](const Check& check) { return check.judgement.deciding == "bits"; };
  std::shared_ptr<RunOutcome> reference;
  if (auto run = judge.take_reference()) reference = std::make_shared<RunOutcome>(std::move(*run));
  if (!backward && reference && !checks.empty() && std::all_of(checks.begin(), checks.end(), by_bits)) {
    observed->same_results = flatten_tensors(reference->result);
  }
  return [this, observed, checks = std::move(checks), reference]() mutable {
    return told.add(observed->call, std::move(checks), [&] { return sides_of(*observed, reference.get()); });
  };
}

void CompareHook::Impl::finish(std::shared_ptr<PendingComparison> observed, const Tell& tell) {
  if (!tell) {
    const size_t bytes = observed->bytes;
    return pool.submit(bytes, [this, observed = std::move(observed)] {
      const InternalGuard ours;
      return OrderedPool::Commit([later = judged(observed)] { later(); });
    });
  }
  const std::string failure = tell();
  if (!failure.empty() && options.raise_on_failure) throw StopProgram("OpAutoCompare: " + failure);
}

void CompareHook::flush() {
  impl_->pool.flush();
  impl_->told.flush();
}

void CompareHook::scope_left() {
  impl_->left.store(true);
  flush();
  impl_->told.summarize();
}

const ResolvedOptions& CompareHook::options() const {
  return impl_->options;
}

CompareResult CompareHook::result() const {
  return impl_->told.result();
}

Value CompareHook::report() const {
  const CompareResult all = result();
  const auto number = [](uint64_t value) { return Value(static_cast<int64_t>(value)); };
  Values ops;
  for (const CompareResult::Op& op : all.ops) {
    ops.push_back(make_dict({{"op", op.op},
                             {"calls", number(op.calls)},
                             {"backward", number(op.backward)},
                             {"passed", number(op.passed)},
                             {"failed", number(op.failed)},
                             {"not_comparable", number(op.not_comparable)},
                             {"worst", op.worst},
                             {"reason", op.reason},
                             {"source", op.source}}));
  }
  return make_dict({{"rows", impl_->told.rows()},
                    {"ops", make_list(std::move(ops))},
                    {"calls", number(all.calls)},
                    {"passed", number(all.passed)},
                    {"failed", number(all.failed)},
                    {"not_comparable", number(all.not_comparable)},
                    {"left_out", number(all.left_out)},
                    {"saved", number(all.saved)},
                    {"not_saved", number(all.not_saved)},
                    {"rows_dropped", number(all.rows_dropped)},
                    {"root", all.root},
                    {"failure", all.failure}});
}

void read_into(Settings& settings, CompareOptions& options) {
  settings.read("method", options.method);
  settings.read("golden", options.golden);
  settings.read("nan_equal", options.nan_equal);
  settings.read("strides", options.strides);
  settings.read("gradients", options.gradients);
  settings.read("first_n_per_signature", options.first_n_per_signature);
  settings.read("every_nth", options.every_nth);
  settings.read("async_", options.async);
  settings.read("workers", options.workers);
  settings.read("max_pending_mb", options.max_pending_mb);
  settings.read("raise_on_failure", options.raise_on_failure);
  settings.read("max_saved", options.max_saved);
  settings.read("max_saved_mb", options.max_saved_mb);
}

}  // namespace op_tools
