#include "run_op_from_data/engine.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "calls/random_state.h"
#include "compare/memory_beside.h"
#include "fallback/moved_tensors.h"
#include "hooks/op_call.h"
#include "hooks/op_traits.h"
#include "run_op_from_data/replay_frame.h"
#include "tensor/exception_text.h"
#include "tensor/plain_tensor.h"
#include "timing/stopwatch.h"

namespace op_tools::replay {

BoundCall Engine::bind(const std::string& name, const CallArguments& arguments) const {
  if (!arguments.aten.is<None>()) return resolver_.bind_recorded(arguments.aten);
  if (caller_ && caller_->knows(name)) {
    BoundCall bound;
    bound.target = name;
    bound.random = true;  // not known before
    bound.uninitialized = returns_uninitialized(base_name(name));
    bound.run = [this, name, arguments] { return caller_->call(name, arguments.args, arguments.kwargs); };
    return bound;
  }
  try {
    return resolver_.bind(name, arguments.args, arguments.kwargs);
  } catch (const PythonOnly& error) {
    throw Error(std::string(error.what()) + (caller_ ? ", and is none of the operator functions that files may name"
                                                     : "; use python -m op_tools.run_op_from_data"));
  }
}

// For runs that are not under test.
ReplayableCall::Operator Engine::operator_of(const SavedCall& call) const {
  return [this, name = call.name](const CallArguments& arguments) {
    BoundCall bound = bind(name, arguments);
    Value result = bound.run();
    return bound.returns_nothing ? Value() : result;
  };
}

namespace {

// The captured program's state on this thread, with autocast where its call had it: on the device of the call.
ProgramState state_on(const SavedCall& call, c10::Device device) {
  ProgramState state = call.meta.state;
  for (Autocast& autocast : state.autocast) {
    if (autocast.device == device_of(call).type()) autocast.device = device.type();
  }
  return state;
}

bool names(const Value& value, c10::DeviceType type) {
  if (const auto* device = value.get_if<c10::Device>()) return device->type() == type;
  if (const auto* dict = value.get_if<Dict>()) {
    return std::any_of(dict->items->begin(), dict->items->end(),
                       [type](const auto& item) { return names(item.second, type); });
  }
  const Values* items = sequence_items(value);
  return items && std::any_of(items->begin(), items->end(), [type](const Value& item) { return names(item, type); });
}

// By its tensors; of a call that has and gives none, by the device that it names.
bool ran_on(c10::DeviceType type, const RunInputs& inputs, const Value& result) {
  std::vector<at::Tensor> tensors = flatten_tensors(result);
  tensors.insert(tensors.end(), inputs.tensors.begin(), inputs.tensors.end());
  if (tensors.empty()) return names(inputs.args, type) || names(inputs.kwargs, type);
  return std::any_of(tensors.begin(), tensors.end(),
                     [type](const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == type; });
}

std::vector<at::DimVector> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::DimVector> sizes;
  for (const at::Tensor& tensor : tensors) {
    sizes.emplace_back();
    if (!tensor.is_nested()) sizes.back().assign(tensor.sizes().begin(), tensor.sizes().end());
  }
  return sizes;
}

}  // namespace

TestRun Engine::run_once(const SavedCall& call) {
  const RunInputs inputs = make_inputs(call, plan_for(call, device_));
  TestRun run;
  run.bound = bind(call.name, {inputs.args, inputs.kwargs, inputs.aten});
  const StateGate::Pass pass(gate_, call.meta.state.process, !call.rng.is<None>() || run.bound.random);
  const NumThreads threads(call.meta.state.num_threads);
  std::optional<SavedInvariance::Calls> seen;
  if (invariance_) seen.emplace(*invariance_, level_of(call));
  MemoryBeside beside;
  const bool looks_beside = options_.acc_check || !options_.shrink.empty();
  if (looks_beside) {
    const std::vector<bool> written = written_in_room(call);
    give_room(inputs, written);
    beside.take(written, inputs.tensors);
  }
  const std::vector<at::DimVector> sizes = sizes_of(inputs.tensors);
  run_forward(call, inputs, &run);
  // A tensor that the call made larger goes on in the room.
  if (looks_beside && run.outcome.raised.empty() && sizes == sizes_of(inputs.tensors)) {
    run.written_beside = beside.changes();
  }
  if (run.outcome.raised.empty() && !options_.only_run_forward) run_backward(call, inputs, &run);
  run.bound.run = nullptr;  // they hold the inputs
  run.bound.stack = nullptr;
  return run;
}

void Engine::run_forward(const SavedCall& call, const RunInputs& inputs, TestRun* run) {
  const ThreadState state(state_on(call, device_));
  std::set<c10::DeviceType> same_numbers;  // as in the captured call
  if (options_.seed) {
    seed_generators(*options_.seed, device_);
  } else if (!call.rng.is<None>()) {
    same_numbers = restore_random_state(call.rng, device_);
  }
  RunOutcome& outcome = run->outcome;
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : inputs.tensors) versions.push_back(version_of(tensor));
  const RandomWatch random(inputs.args, inputs.kwargs);
  Stopwatch stopwatch(device_, options_.sync_time_measure);
  try {
    Value result = run_in_chain(call, inputs, run->bound, operator_of(call), stopwatch, &run->forward_ms);
    // Python gives the lists themselves where the operator gives nothing; both are compared as changed inputs.
    if (!run->bound.returns_nothing) outcome.result = std::move(result);
  } catch (const std::exception& error) {
    outcome.raised = exception_text(error);
  }
  run->on_device = ran_on(device_.type(), inputs, outcome.result);
  // A factory that is moved to another device draws from the generator there, of which nothing was captured.
  const Value moved = random.moved();
  if (const auto* states = moved.get_if<Dict>()) {
    for (const auto& [name, now] : *states->items) {
      run->random |= !same_numbers.contains(c10::Device(*name.get_if<std::string>()).type());
    }
  }
  for (const at::Tensor& tensor : inputs.tensors) outcome.inputs.push_back(tensor.detach());
  outcome.written.resize(outcome.inputs.size());
  outcome.record_memory(flatten_tensors(outcome.result), inputs.tensors);
  if (call.judged.is<None>()) return;
  for (size_t i = 0; i < versions.size(); ++i) outcome.written[i] = version_of(inputs.tensors[i]) != versions[i];
}

void Engine::run_backward(const SavedCall& call, const RunInputs& inputs, TestRun* run) const {
  const SeenByHooks seen(true);
  const Tensors outputs = flatten_tensors(run->outcome.result);
  for (size_t pass = 0; pass < call.backward.size(); ++pass) {
    const bool keep_graph = pass + 1 < call.backward.size();
    Stopwatch stopwatch(device_, options_.sync_time_measure);
    stopwatch.start();
    const Tensors arriving = gradient_list(call.backward[pass].grad_outputs);
    run->input_gradients.push_back(call.node_gradients
                                       ? last_node_gradients(outputs, arriving, inputs.edges, keep_graph)
                                       : gradients_at(inputs.edges, outputs, arriving, keep_graph));
    run->backward_ms.push_back(stopwatch.stop());
  }
}

namespace {

void add_written_beside(const TestRun& run, std::vector<Check>* checks) {
  if (run.written_beside.empty()) return;
  checks->push_back(MemoryBeside::check(run.written_beside));
  checks->back().against = "cpu";
}

// Why nothing can be said about the run; empty: something can.
std::string why_not_judged(const SavedCall& call, const TestRun& run, const std::string& device) {
  if (!run.on_device) return "the call did not run on " + device;
  // What it waits for arrived after its inputs were saved.
  return is_collective(call.name) ? "other processes took part in it" : "";
}

Check unjudged_check(const std::string& why) {
  Check check;
  check.judgement = not_judged(Unjudged::kNoReference, why);
  check.against = "cpu";
  return check;
}

}  // namespace

std::vector<Check> Engine::judge(const SavedCall& call, const TestRun& run, References& references) const {
  if (const std::string why = why_not_judged(call, run, options_.device); !why.empty()) return {unjudged_check(why)};
  references.set_alone(!call.rng.is<None>() || run.bound.random);
  if (!options_.expected.empty()) {
    // Of a compiled graph the expectations are those of its operators, one by one, as they were for the program's.
    const bool is_alone = device_.is_cpu() && !is_graph_call(call.name);
    return is_alone ? judge_.alone(call, run, references) : judge_.against_cpu(call, run, references);
  }
  if (device_.is_cpu() && !call.judged.is<None>()) return judge_.saved_failure(call, references);
  std::vector<Check> checks = judge_.against_saved(call, run, references);
  if (!device_.is_cpu()) {
    for (Check& check : judge_.against_cpu(call, run, references)) checks.push_back(std::move(check));
  }
  add_written_beside(run, &checks);
  return checks;
}

namespace {

bool any_differs(const std::vector<Check>& checks) {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; });
}

}  // namespace

void Engine::replay(const StoredCall& stored, SavedCall& call, CallReport* report) {
  refuse_unsupported(call);
  if (options_.acc_check) read_output(stored, &call);
  if (!options_.only_run_forward) read_backward(stored, &call);
  report->missing = call.cut_off;
  References references(call, gate_, operator_of(call));
  const int warm_up = options_.warm_up.value_or(options_.sync_time_measure && options_.run_times > 1 ? 1 : 0);
  for (int i = 0; i < warm_up; ++i) run_once(call);
  for (int i = 0; i < options_.run_times; ++i) {
    const TestRun run = run_once(call);
    report->target = run.bound.target;
    if (!run.outcome.raised.empty() && call.meta.error.empty()) throw Error("raised: " + run.outcome.raised);
    report->forward_ms.push_back(run.forward_ms);
    report->backward_ms.insert(report->backward_ms.end(), run.backward_ms.begin(), run.backward_ms.end());
    // Of several runs the first that differs is reported, else the first.
    if (!options_.acc_check || report->differs()) continue;
    std::vector<Check> checks = judge(call, run, references);
    if (i == 0 || any_differs(checks)) report->checks = std::move(checks);
  }
}

CallReport Engine::replay(const StoredCall& stored) {
  const SeenByHooks hidden(false);
  CallReport report;
  report.path = stored.path();
  try {
    SavedCall call = read_input(stored);
    report.name = call.name;
    if (filter_.admits(call.name)) {
      replay(stored, call, &report);
    } else {
      report.status = Status::kLeftOut;
    }
  } catch (const std::exception& error) {
    report.status = Status::kCouldNotRun;
    report.reason = exception_text(error);
  } catch (...) {
    report.status = Status::kCouldNotRun;
    report.reason = "an exception of unknown type";
  }
  return report;
}

std::vector<Check> Engine::compare_with_cpu(const SavedCall& call) {
  const SeenByHooks hidden(false);
  References references(call, gate_, operator_of(call));
  const TestRun run = run_once(call);
  if (const std::string why = why_not_judged(call, run, options_.device); !why.empty()) return {unjudged_check(why)};
  references.set_alone(!call.rng.is<None>() || run.bound.random);
  std::vector<Check> checks =
      device_.is_cpu() ? judge_.alone(call, run, references) : judge_.against_cpu(call, run, references);
  add_written_beside(run, &checks);
  return checks;
}

RunOutcome Engine::run_on_cpu(const SavedCall& call) {
  const SeenByHooks hidden(false);
  return References(call, gate_, operator_of(call)).forward({RunVariant::Kind::kReference});
}

}  // namespace op_tools::replay
