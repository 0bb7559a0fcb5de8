#include "run_op_from_data/replay.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/op_filter.h"
#include "calls/call_store.h"
#include "calls/random_state.h"
#include "fallback/moved_tensors.h"
#include "hooks/op_traits.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/program_state.h"
#include "run_op_from_data/references.h"
#include "run_op_from_data/replay_frame.h"
#include "run_op_from_data/report.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "run_op_from_data/run_judge.h"
#include "run_op_from_data/summary.h"
#include "run_op_from_data/times.h"
#include "tensor/exception_text.h"
#include "tensor/plain_tensor.h"
#include "timing/stopwatch.h"

namespace op_tools::replay {
namespace {

class Engine {
 public:
  Engine(const ReplayOptions& options, PythonCaller* caller)
      : options_(options),
        caller_(caller),
        device_(options.device),
        filter_(options.filter, "", "--filter", ""),
        judge_(options) {}

  CallReport replay(const StoredCall& stored);

 private:
  BoundCall bind(const std::string& name, const CallArguments& arguments) const;
  ReplayableCall::Operator operator_of(const SavedCall& call) const;
  void replay(const StoredCall& stored, SavedCall& call, CallReport* report);
  TestRun run_once(const SavedCall& call);
  void run_forward(const SavedCall& call, const RunInputs& inputs, TestRun* run);
  void run_backward(const SavedCall& call, const RunInputs& inputs, TestRun* run) const;
  std::vector<Check> judge(const SavedCall& call, const TestRun& run, References& references) const;

  const ReplayOptions& options_;
  PythonCaller* const caller_;
  const c10::Device device_;
  const OpFilter filter_;
  const RunJudge judge_;
  const Resolver resolver_;
  StateGate gate_;
};

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

// The captured program's state on this thread, with autocast where its call had it: on the device of the call.
ProgramState state_on(const SavedCall& call, c10::Device device) {
  ProgramState state = call.meta.state;
  for (Autocast& autocast : state.autocast) {
    if (autocast.device == device_of(call).type()) autocast.device = device.type();
  }
  return state;
}

TestRun Engine::run_once(const SavedCall& call) {
  const RunInputs inputs = make_inputs(call.args, call.kwargs, call.aten, plan_for(call, device_));
  TestRun run;
  run.bound = bind(call.name, {inputs.args, inputs.kwargs, inputs.aten});
  const StateGate::Pass pass(gate_, call.meta.state.process, !call.rng.is<None>() || run.bound.random);
  const NumThreads threads(call.meta.state.num_threads);
  run_forward(call, inputs, &run);
  if (run.outcome.raised.empty() && !options_.only_run_forward) run_backward(call, inputs, &run);
  run.bound.run = nullptr;  // it holds the inputs
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
  // A factory that is moved to another device draws from the generator there, of which nothing was captured.
  const Value moved = random.moved();
  if (const auto* states = moved.get_if<Dict>()) {
    for (const auto& [name, now] : *states->items) {
      run->random |= !same_numbers.contains(c10::Device(*name.get_if<std::string>()).type());
    }
  }
  for (const at::Tensor& tensor : inputs.tensors) outcome.inputs.push_back(tensor.detach());
  outcome.written.resize(outcome.inputs.size());
  if (call.judged.is<None>()) return;  // captures do not say in whose memory the results were
  outcome.record_memory(flatten_tensors(outcome.result), inputs.tensors);
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
    run->input_gradients.push_back(call.from_ditorch ? last_node_gradients(outputs, arriving, inputs.edges, keep_graph)
                                                     : gradients_at(inputs.edges, outputs, arriving, keep_graph));
    run->backward_ms.push_back(stopwatch.stop());
  }
}

std::vector<Check> Engine::judge(const SavedCall& call, const TestRun& run, References& references) const {
  references.set_alone(!call.rng.is<None>() || run.bound.random);
  if (device_.is_cpu() && !call.judged.is<None>()) return judge_.saved_failure(call, references);
  std::vector<Check> checks = judge_.against_saved(call, run, references);
  if (device_.is_cpu()) return checks;
  for (Check& check : judge_.against_cpu(call, run, references)) checks.push_back(std::move(check));
  return checks;
}

bool any_differs(const std::vector<Check>& checks) {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.judgement.verdict == Verdict::kDiffers; });
}

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

void load_library(const std::string& name) {
  // Global, so that a backend finds the symbols of what was loaded before it.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw Error("cannot load " + name + ": " + dlerror());
  // Most register themselves; the simulated device waits to be asked.
  if (void* load = dlsym(library, "op_tools_load_device")) reinterpret_cast<void (*)()>(load)();
}

// The program is linked with torch's CPU part only.
void prepare_device(const ReplayOptions& options) {
  for (const std::string& library : options.libraries) load_library(library);
  const std::string type = options.device.substr(0, options.device.find(':'));
  const std::string backend = "; its backend is missing: give --load with the library that registers it (lib" +
                              ("torch_" + type) + ".so), or in Python import it first: python -c \"import torch_" +
                              type + "; from op_tools.run_op_from_data import main; main()\" DIR ...";
  try {
    const c10::Device device(options.device);
    if (device.is_cuda() && !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) load_library("libtorch_cuda.so");
    if (!device.is_cpu() && !device.is_meta() && !c10::impl::hasDeviceGuardImpl(device.type())) {
      throw Error("--device " + options.device + ": nothing here runs on it" + backend);
    }
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    text.resize(std::min(text.find('\n'), text.size()));
    throw Error("--device " + options.device + ": " + text + backend);
  }
}

}  // namespace

namespace {

struct AllCalls {
  std::vector<std::unique_ptr<StoredCall>> calls;  // of this shard
  size_t count = 0;                                // of all shards
  std::vector<std::string> problems;               // paths that could not be searched
};

AllCalls calls_of(const ReplayOptions& options) {
  AllCalls all;
  for (const std::string& path : options.paths) {
    try {
      FoundCalls found = find_calls(path);
      for (auto& call : found.calls) all.calls.push_back(std::move(call));
      all.problems.insert(all.problems.end(), found.problems.begin(), found.problems.end());
      if (found.calls.empty() && found.problems.empty()) all.problems.push_back(path + ": no captured call in it");
    } catch (const std::exception& error) {
      all.problems.push_back(exception_text(error));
    }
  }
  all.count = all.calls.size();
  if (!options.shard) return all;
  std::vector<std::unique_ptr<StoredCall>> ours;
  for (auto i = static_cast<size_t>(options.shard->index); i < all.count;
       i += static_cast<size_t>(options.shard->count)) {
    ours.push_back(std::move(all.calls[i]));
  }
  all.calls = std::move(ours);
  if (options.shard->index != 0) all.problems.clear();  // each shard meets them; the first one reports them
  return all;
}

}  // namespace

int run(const ReplayOptions& options, PythonCaller* caller) {
  prepare_device(options);
  // Before hours are spent.
  if (!options.compare.empty()) read_times(options.compare);
  check_json(options.json);
  Engine engine(options, caller);
  Stopwatch whole(c10::kCPU, /*synchronize=*/false);
  whole.start();
  const AllCalls all = calls_of(options);
  Reporter reporter(options, all.calls.size(), all.count);
  std::atomic<size_t> next{0};
  std::atomic<bool> interrupted{false};
  const auto work = [&](PythonCaller* asked) {
    for (size_t i = next++; i < all.calls.size() && !interrupted; i = next++) {
      reporter.add(i, engine.replay(*all.calls[i]));
      if (asked && asked->is_interrupted()) interrupted = true;
    }
  };
  // The workers get this thread's state of torch, and with it the scopes that are on here.
  const at::ThreadLocalState state;
  std::vector<std::thread> workers;
  for (size_t i = 1; i < std::min(static_cast<size_t>(options.jobs), all.calls.size()); ++i) {
    workers.emplace_back([&] {
      const at::ThreadLocalStateGuard as_here(state);
      work(nullptr);
    });
  }
  work(caller);
  for (std::thread& worker : workers) worker.join();
  if (interrupted) throw Error("interrupted");
  return reporter.finish(all.problems, whole.stop() / 1000);
}

int run_command(const std::vector<std::string>& arguments, PythonCaller* caller) {
  const Arguments parsed = parse_arguments(arguments);
  if (!parsed.options) return parsed.exit_status;
  try {
    if (parsed.options->merge) return merge_reports(*parsed.options);
    return run(*parsed.options, caller);
  } catch (const std::exception& error) {
    std::cerr << "run_op_from_data: " << exception_text(error) << "\n";
    return kWrongUsage;
  }
}

}  // namespace op_tools::replay
