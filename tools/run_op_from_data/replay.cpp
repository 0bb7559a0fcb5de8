#include "run_op_from_data/replay.h"

#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/op_filter.h"
#include "calls/call_store.h"
#include "calls/random_state.h"
#include "compare/rerun/variant_inputs.h"
#include "fallback/cpu_runner.h"
#include "hooks/op_traits.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/program_state.h"
#include "run_op_from_data/report.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "run_op_from_data/run_judge.h"
#include "run_op_from_data/summary.h"
#include "run_op_from_data/times.h"
#include "tensor/exception_text.h"
#include "timing/stopwatch.h"

namespace op_tools::replay {
namespace {

// --- One run
// -------------------------------------------------------------------------------------------------------------

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
  BoundCall bind(const CapturedCall& call, const RunInputs& inputs) const;
  // `golden`: in float64 instead, on the CPU.
  RunResult run_once(const CapturedCall& call, c10::Device device, const RunVariant* golden = nullptr);
  void run_backward(const CapturedCall& call, const RunInputs& inputs, c10::Device device, RunResult* run) const;

  const ReplayOptions& options_;
  PythonCaller* const caller_;
  const c10::Device device_;
  const OpFilter filter_;
  const RunJudge judge_;
  const Resolver resolver_;
  StateGate gate_;
};

// A program that had tensors on an accelerator kept some on the CPU on purpose; one that had all on
// the CPU is moved as a whole.
InputPlan plan_for(const CapturedCall& call, c10::Device device) {
  const auto& recorded = call.meta.input_devices;
  const bool keep_cpu =
      std::any_of(recorded.begin(), recorded.end(), [](c10::Device d) { return !d.is_cpu() && !d.is_meta(); });
  InputPlan plan;
  plan.restrided = call.restrided;
  plan.move_device = [=](c10::Device from) { return from.is_meta() || (keep_cpu && from.is_cpu()) ? from : device; };
  for (const c10::Device from : recorded) {
    // The files hold all tensors on the CPU: "meta" tensors have no data, and are kept as they are.
    plan.devices.push_back(plan.move_device(from));
  }
  return plan;
}

BoundCall Engine::bind(const CapturedCall& call, const RunInputs& inputs) const {
  if (!inputs.aten.is<None>()) return resolver_.bind_recorded(inputs.aten);
  if (caller_ && caller_->knows(call.name)) {
    BoundCall bound;
    bound.target = call.name;
    bound.random = true;  // nobody knows before
    bound.uninitialized = returns_uninitialized(std::string_view(call.name).substr(call.name.rfind('.') + 1));
    bound.run = [this, name = call.name, args = inputs.args, kwargs = inputs.kwargs] {
      return caller_->call(name, args, kwargs);
    };
    return bound;
  }
  try {
    return resolver_.bind(call.name, inputs.args, inputs.kwargs);
  } catch (const PythonOnly& error) {
    throw Error(std::string(error.what()) + (caller_ ? ", and is none of the operator functions that files may name"
                                                     : "; use python -m op_tools.run_op_from_data"));
  }
}

// The same inputs in float64, changed a little where the run is to show how exactly its result can be known.
RunInputs in_float64(const RunInputs& inputs, const RunVariant& variant) {
  const MovedCall wide(make_tuple({inputs.args, inputs.kwargs, inputs.aten}), make_dict({}),
                       {.device = c10::kCPU, .cast = &golden_dtype, .fresh = true});
  const Values& parts = *sequence_items(wide.args());
  RunInputs made;
  made.args = parts[0];
  made.kwargs = parts[1];
  made.aten = parts[2];
  made.tensors.assign(wide.tensors().begin(),
                      wide.tensors().begin() + static_cast<std::ptrdiff_t>(inputs.tensors.size()));
  made.edges.assign(wide.edges().begin(), wide.edges().begin() + static_cast<std::ptrdiff_t>(inputs.tensors.size()));
  if (variant.kind == RunVariant::Kind::kFloat32Scalars) {
    round_scalars_to_float32(made.args, made.kwargs, inputs.tensors);
  }
  if (variant.kind == RunVariant::Kind::kFloat64Perturbed) perturb(made.tensors, inputs.tensors, variant, std::nullopt);
  return made;
}

RunResult Engine::run_once(const CapturedCall& call, c10::Device device, const RunVariant* golden) {
  RunInputs inputs = make_inputs(call.args, call.kwargs, call.aten, plan_for(call, device));
  if (golden) inputs = in_float64(inputs, *golden);
  BoundCall bound = bind(call, inputs);
  RunResult run;
  run.target = bound.target;
  run.uninitialized = bound.uninitialized;
  run.returns_nothing = bound.returns_nothing;
  run.workspace = bound.workspace;
  const bool has_state = !call.rng.is<None>();
  const StateGate::Pass pass(gate_, call.meta.process, has_state || bound.random);
  const NumThreads threads(call.meta.num_threads);
  {
    RecordedMeta meta = call.meta;
    if (golden) meta.autocast.clear();
    const ThreadState state(meta);
    std::set<c10::DeviceType> same_numbers;  // as in the captured call
    if (options_.seed)
      seed_generators(*options_.seed, device);
    else if (has_state)
      same_numbers = restore_random_state(call.rng, device);
    const RandomWatch random(inputs.args, inputs.kwargs);
    Stopwatch stopwatch(device, options_.sync_time_measure);
    stopwatch.start();
    try {
      run.result = bound.run();
    } catch (const std::exception& error) {
      run.raised = exception_text(error);
    }
    run.forward_ms = stopwatch.stop();
    // A factory that is moved to another device draws from the generator there, of which nothing was captured.
    const Value moved = random.moved();
    if (const auto* states = moved.get_if<Dict>()) {
      for (const auto& [name, state] : *states->items) {
        run.random |= !same_numbers.contains(c10::Device(*name.get_if<std::string>()).type());
      }
    }
  }
  if (run.raised.empty() && !options_.only_run_forward) run_backward(call, inputs, device, &run);
  run.mutable_inputs = std::move(inputs.tensors);
  return run;
}

void Engine::run_backward(const CapturedCall& call, const RunInputs& inputs, c10::Device device, RunResult* run) const {
  const Tensors outputs = flatten_tensors(run->result);
  for (size_t pass = 0; pass < call.backward.size(); ++pass) {
    const bool keep_graph = pass + 1 < call.backward.size();
    const auto gradients = call.from_ditorch ? last_node_gradients : input_gradients;
    Stopwatch stopwatch(device, options_.sync_time_measure);
    stopwatch.start();
    run->input_gradients.push_back(gradients(outputs, call.backward[pass].grad_outputs, inputs, keep_graph));
    run->backward_ms.push_back(stopwatch.stop());
  }
}

// --- One call
// ----------------------------------------------------------------------------------------------------------------

CallReport Engine::replay(const StoredCall& stored) {
  CallReport report;
  report.path = stored.path();
  try {
    CapturedCall call = read_call(stored);
    report.name = call.name;
    if (!filter_.admits(call.name)) {
      report.status = Status::kLeftOut;
      return report;
    }
    refuse_unsupported(call);
    if (options_.acc_check) read_output(stored, &call);
    if (!options_.only_run_forward) read_backward(stored, &call);
    report.missing = what_was_cut_off(stored, call);

    std::optional<RunResult> reference;
    if (options_.acc_check && !device_.is_cpu()) reference = run_once(call, c10::kCPU);
    std::map<std::tuple<int, int, bool>, RunResult> golden_runs;
    const GoldenRuns golden = [&](const RunVariant& variant) -> const RunResult& {
      const std::tuple key(static_cast<int>(variant.kind), variant.sample, variant.coarse);
      const auto known = golden_runs.find(key);
      if (known != golden_runs.end()) return known->second;
      RunResult run;
      try {
        run = run_once(call, c10::kCPU, &variant);
      } catch (const std::exception& error) {
        run.raised = exception_text(error);
      }
      return golden_runs.emplace(key, std::move(run)).first->second;
    };
    const int warm_up = options_.warm_up.value_or(options_.sync_time_measure && options_.run_times > 1 ? 1 : 0);
    for (int i = 0; i < warm_up; ++i) run_once(call, device_);
    for (int i = 0; i < options_.run_times; ++i) {
      const RunResult run = run_once(call, device_);
      report.target = run.target;
      if (!run.raised.empty() && call.meta.error.empty()) throw Error("raised: " + run.raised);
      report.forward_ms.push_back(run.forward_ms);
      report.backward_ms.insert(report.backward_ms.end(), run.backward_ms.begin(), run.backward_ms.end());
      // Of several runs the first that differs is reported, else the first.
      if (!options_.acc_check || report.differs()) continue;
      std::vector<Check> checks = judge_.against_saved(call, run, golden);
      if (reference) {
        for (Check& check : judge_.against_cpu(call, run, *reference, golden)) checks.push_back(std::move(check));
      }
      CallReport judged_now;
      judged_now.checks = std::move(checks);
      if (i == 0 || judged_now.differs()) report.checks = std::move(judged_now.checks);
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
  try {
    const c10::Device device(options.device);
    if (device.is_cuda() && !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) load_library("libtorch_cuda.so");
  } catch (const c10::Error& error) {
    throw Error("--device " + options.device + ": " + error.what_without_backtrace());
  }
}

}  // namespace

int run(const ReplayOptions& options, PythonCaller* caller) {
  prepare_device(options);
  // Before hours are spent on what it is to be compared with.
  if (!options.compare.empty()) read_times(options.compare);
  Engine engine(options, caller);
  Stopwatch whole(c10::kCPU, /*synchronize=*/false);
  whole.start();

  std::vector<std::unique_ptr<StoredCall>> calls;
  std::vector<std::string> problems;
  for (const std::string& path : options.paths) {
    try {
      FoundCalls found = find_calls(path);
      for (auto& call : found.calls) calls.push_back(std::move(call));
      problems.insert(problems.end(), found.problems.begin(), found.problems.end());
      if (found.calls.empty() && found.problems.empty()) problems.push_back(path + ": no captured call in it");
    } catch (const std::exception& error) {
      problems.push_back(exception_text(error));
    }
  }

  const size_t found = calls.size();
  if (options.shard) {
    const auto count = static_cast<size_t>(options.shard->count);
    std::vector<std::unique_ptr<StoredCall>> ours;
    for (size_t i = static_cast<size_t>(options.shard->index); i < calls.size(); i += count) {
      ours.push_back(std::move(calls[i]));
    }
    calls = std::move(ours);
    if (options.shard->index != 0) problems.clear();  // each part meets them; the first one tells
  }
  Reporter reporter(options, calls.size(), found);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < calls.size(); i = next++) reporter.add(i, engine.replay(*calls[i]));
  };
  std::vector<std::thread> workers;
  for (size_t i = 1; i < std::min(static_cast<size_t>(options.jobs), calls.size()); ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  return reporter.finish(problems, whole.stop() / 1000);
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
