#include "record/record_hook.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/run_folder.h"
#include "base/stop_program.h"
#include "coverage/coverage.h"
#include "coverage/coverage_text.h"
#include "hooks/collectives.h"
#include "hooks/written_inputs.h"
#include "record/recorder.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/statistics.h"

namespace op_tools {

const Columns<RecordRow>& RecordRow::columns() {
  static const Columns<RecordRow> all{"RecordRow",
                                      "Calls of an operator in a recording.",
                                      {
                                          {"op", &RecordRow::op, "the operator"},
                                          {"calls", &RecordRow::calls, "forward calls"},
                                          {"backward", &RecordRow::backward, "backward calls"},
                                          {"failed", &RecordRow::failed, "calls that raised"},
                                      }};
  return all;
}

RecordHook::RecordHook(const ResolvedRecordOptions& options) {
  if (options.modules_only && options.scope.level != Level::kTorch) {
    throw Error("modules_only= records calls of modules, which the aten level has none of: level=\"torch\"");
  }
  if (options.row_hashes && (options.modules_only || !options.statistics)) {
    throw Error("row_hashes= needs operators and statistics: leave out modules_only= and statistics=");
  }
  StatisticsQuery::begin_run();
  recorder_ = std::make_unique<Recorder>(options);
}
RecordHook::~RecordHook() = default;

Wants RecordHook::wants() const {
  return {.gradients = true,
          .borrows_gradients = true,
          .modules = recorder_->options.modules_only,
          .graphs = true,
          .device_values = true,
          .progress = true};
}

// A recording that its own failure ends is not complete, and says why.
template <class Work>
auto RecordHook::contained(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const StopProgram&) {
    throw;
  } catch (const std::exception& error) {
    if (!hold_for_program(error)) recorder_->fail(exception_text(error));
  }
  return decltype(work())();
}

std::unique_ptr<HookState> RecordHook::before(OpCall& call) {
  return contained([&] { return take(call); });
}

void RecordHook::after(OpCall& call, HookState* state) {
  contained([&] { note(call, state); });
}

std::unique_ptr<HookState> RecordHook::take(OpCall& call) {
  if (!recorder_->is_on()) {
    call.decline();
    return nullptr;
  }
  auto state = std::make_unique<Recorder::State>();
  if (is_backward_at_torch(call)) return state;  // its gradients are read in after()
  recorder_->make_file(call);
  call.forward_id();  // asked now, they are known in the call's backward as well
  call.find_place(recorder_->options.with_stack, recorder_->options.with_modules);
  ArgumentKey key;
  const bool has_key = recorder_->take_inputs(call, *state, key);
  recorder_->take_elements(call, *state);
  if (recorder_->awaits() && !state->op->source.collective) {
    state->shows_late = recorder_->shows_awaited(call, *state);
    if (!state->shows_late) recorder_->arrive(*state);
  }
  // Writes to tensors of inference mode, and below autograd's keys, are not counted.
  const bool is_below = state->op->writes_declared && call.local_keys.excluded_.has(c10::DispatchKey::ADInplaceOrView);
  const bool is_uncounted =
      is_below || std::any_of(state->inputs.begin(), state->inputs.end(),
                              [](const Recorder::Input& input) { return input.tensor.is_inference(); });
  if (recorder_->options.modules_only) {
    state->written = recorder_->running_statistics(*state);
  } else if (is_uncounted || state->op->writes_uncounted || writes_lists(call)) {
    state->written = written_inputs(call);
  }
  if (has_key) {
    state->random.emplace(key.tensors(), key.devices());
  } else {
    state->random.emplace(call.args(), call.kwargs());
  }
  return state;
}

void RecordHook::note(OpCall& call, HookState* any_state) {
  if (!any_state || !recorder_->is_on()) return;
  auto& state = static_cast<Recorder::State&>(*any_state);
  if (is_backward_at_torch(call)) {
    ArgumentKey key;
    recorder_->take_inputs(call, state, key);
  }
  if (state.op->source.collective && waits_for_collective(call)) recorder_->arrive(state);
  state.is_late =
      state.shows_late || (state.op->source.collective && state.op->source.of_results(call) == ValueSource::kUnknown);
  Recorder::Outputs outputs = recorder_->outputs_of(call, state);
  recorder_->read_outputs(call, state, outputs);
  recorder_->add_call(call, state, outputs);
  if (!state.places.empty() && call.phase == Phase::kForward) {
    call.save_for_backward(std::make_shared<InputPlaces>(std::move(state.places)));
  }
}

void RecordHook::step_begins(int64_t) {
  if (!recorder_->is_on()) return;
  const InternalGuard ours;
  recorder_->step_begins();
}

void RecordHook::flush() {
  if (!recorder_->is_on()) return;
  const InternalGuard ours;
  recorder_->flush();
}

void RecordHook::run_ends(const std::function<Coverage()>& account) {
  if (recorder_->is_on()) account_ = to_value(account());
}

void RecordHook::scope_left() {
  if (recorder_->is_on() && recorder_->options.statistics) {
    const InternalGuard ours;
    StatisticsQuery::check_devices();
  }
  flush();
  if (!recorder_->end(account_)) return;
  if (recorder_->options.jitter > 0 && !recorder_->has_jittered()) {
    log::warn("OpRecord: jitter= changed nothing: no module was called with a floating-point tensor");
  }
  const RecordResult summary = result();
  log::notice("OpRecord: " + std::to_string(summary.calls) + " calls in " + shown_path(summary.path) + ", " +
              std::to_string(summary.bytes / 1000) + " kB");
}

RecordResult RecordHook::result() const {
  return recorder_->result();
}

void RecordHook::add_coverage(Coverage& account) const {
  const RecordResult summary = result();
  if (!summary.ended_early.empty())
    account.lost[Loss::kNotWritten] += account.seen - std::min(account.seen, summary.calls);
}

Value RecordHook::report() const {
  const RecordResult summary = result();
  Values on_host;
  for (const std::string& device : summary.statistics_on_host) on_host.emplace_back(device);
  return make_dict({{"rows", RecordRow::columns().values(summary.rows)},
                    {"path", summary.path},
                    {"failure", summary.failure},
                    {"ended_early", summary.ended_early},
                    {"calls", static_cast<int64_t>(summary.calls)},
                    {"values", static_cast<int64_t>(summary.values)},
                    {"bytes", static_cast<int64_t>(summary.bytes)},
                    {"read_backs", static_cast<int64_t>(summary.read_backs)},
                    {"statistics_on_host", make_list(std::move(on_host))},
                    {"statistics_in_doubt", static_cast<int64_t>(summary.statistics_in_doubt)}});
}

}  // namespace op_tools
