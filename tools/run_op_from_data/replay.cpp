#include "run_op_from_data/replay.h"

#include <ATen/ScalarOps.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "capture/call_store.h"
#include "capture/random_state.h"
#include "compare/tensor_diff.h"
#include "compare/tolerance.h"
#include "hooks/error.h"
#include "hooks/log.h"
#include "hooks/op_filter.h"
#include "run_op_from_data/program_state.h"
#include "run_op_from_data/report.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "timing/stopwatch.h"

namespace op_tools::replay {
namespace {

using Tensors = std::vector<at::Tensor>;

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

// --- What is in a call's files
// -----------------------------------------------------------------------------------------

struct BackwardPass {
  Tensors grad_outputs, grad_inputs;  // undefined where the file has None
};

struct SavedOutput {
  Value result;
  std::vector<std::pair<size_t, at::Tensor>> mutated;  // input tensors after the call, by index
};

struct CapturedCall {
  std::string name;
  Value args, kwargs, aten, rng;
  std::map<size_t, std::vector<int64_t>> restrided;
  bool from_ditorch = false;  // its gradients are the last autograd node's
  RecordedMeta meta;
  std::optional<SavedOutput> output;
  std::vector<BackwardPass> backward;
};

const Value& required(const Value& dict, std::string_view key) {
  const Value* value = find_key(dict, key);
  if (!value) throw Error("has no '" + std::string(key) + "'; a captured call has name, args and kwargs");
  return *value;
}

const Values& sequence(const Value& value, const char* what) {
  const Values* items = sequence_items(value);
  if (!items) throw Error(std::string(what) + " is " + describe(value) + ", expected a tuple");
  return *items;
}

size_t tensor_index(const Value& key, const char* what) {
  const auto* index = key.get_if<int64_t>();
  if (!index || *index < 0)
    throw Error(std::string(what) + " has the key " + describe(key) + ", expected a tensor's index");
  return static_cast<size_t>(*index);
}

std::vector<int64_t> integers(const Value& value, const char* what) {
  if (const auto* size = value.get_if<Size>()) return size->sizes;
  std::vector<int64_t> numbers;
  for (const Value& item : sequence(value, what)) {
    const auto* number = item.get_if<int64_t>();
    if (!number) throw Error(std::string(what) + " holds " + describe(item) + ", expected integers");
    numbers.push_back(*number);
  }
  return numbers;
}

const std::vector<std::pair<Value, Value>>& dict_items(const Value& value, const char* what) {
  const auto* dict = value.get_if<Dict>();
  if (!dict) throw Error(std::string(what) + " is " + describe(value) + ", expected a dict");
  return *dict->items;
}

// Problems of a file's content name the file, like those of its form.
template <class Read>
void read_file(const StoredCall& stored, const char* file, Read read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string text = error.what();
    // Readers of files name the whole path themselves.
    throw text.find(stored.path()) == std::string::npos ? Error(std::string(file) + ": " + text) : error;
  }
}

Tensors gradient_list(const Value& file) {
  Tensors gradients;
  for (const Value& item : sequence(required(file, "args"), "'args'")) {
    const auto* tensor = item.get_if<at::Tensor>();
    gradients.push_back(tensor ? tensor->detach() : at::Tensor());
  }
  return gradients;
}

void read_input(const StoredCall& stored, CapturedCall* call) {
  const Value file = stored.read(CallFile::kInput);
  if (!file.is<Dict>()) throw Error("holds " + describe(file) + ", expected a dict with name, args and kwargs");
  const auto* name = required(file, "name").get_if<std::string>();
  if (!name || name->empty()) throw Error("'name' is " + describe(required(file, "name")) + ", expected a string");
  call->name = *name;
  call->args = required(file, "args");
  call->kwargs = required(file, "kwargs");
  sequence(call->args, "'args'");
  dict_items(call->kwargs, "'kwargs'");
  if (const Value* aten = find_key(file, "aten")) call->aten = *aten;
  if (const Value* rng = find_key(file, "rng")) call->rng = *rng;
  if (const Value* restrided = find_key(file, "restrided")) {
    for (const auto& [key, strides] : dict_items(*restrided, "'restrided'")) {
      call->restrided[tensor_index(key, "'restrided'")] = integers(strides, "'restrided'");
    }
  }
  call->from_ditorch = find_key(file, "identifier") && !find_key(file, "id");
}

void read_output(const StoredCall& stored, CapturedCall* call) {
  const Value file = stored.read(CallFile::kOutput);
  const Values& args = sequence(required(file, "args"), "'args'");
  SavedOutput output;
  // ditorch unpacks a tuple that a call returns, so several are a tuple, too.
  output.result = args.size() == 1 ? args[0] : make_tuple(args);
  if (const Value* mutated = find_key(file, "mutated")) {
    for (const auto& [key, value] : dict_items(*mutated, "'mutated'")) {
      const auto* tensor = value.get_if<at::Tensor>();
      if (tensor) output.mutated.emplace_back(tensor_index(key, "'mutated'"), tensor->detach());
    }
  }
  call->output = std::move(output);
}

void read_backward(const StoredCall& stored, CapturedCall* call) {
  for (uint32_t pass = 0; stored.has(CallFile::kGradOutputs, pass) && stored.has(CallFile::kGradInputs, pass); ++pass) {
    BackwardPass backward;
    read_file(stored, "grad_outputs.pth",
              [&] { backward.grad_outputs = gradient_list(stored.read(CallFile::kGradOutputs, pass)); });
    read_file(stored, "grad_inputs.pth",
              [&] { backward.grad_inputs = gradient_list(stored.read(CallFile::kGradInputs, pass)); });
    call->backward.push_back(std::move(backward));
  }
}

void find_unsupported(const Value& value, std::vector<std::string>* found) {
  if (const auto* unsupported = value.get_if<Unsupported>()) {
    found->push_back(unsupported->type + " (" + unsupported->why + ")");
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) find_unsupported(item, found);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) find_unsupported(item, found);
  }
}

void refuse_unsupported(const CapturedCall& call) {
  std::vector<std::string> missing = call.meta.unsupported;
  if (missing.empty()) {
    find_unsupported(call.args, &missing);
    find_unsupported(call.kwargs, &missing);
  }
  if (missing.empty()) return;
  std::string text = "an input could not be saved when the call was captured: ";
  for (size_t i = 0; i < missing.size(); ++i) text += (i ? "; " : "") + missing[i];
  throw Error(text);
}

// --- One run
// -------------------------------------------------------------------------------------------------------------

struct RunResult {
  std::string target;
  std::string raised;  // what the operator raised; empty when it returned
  Value result;
  Tensors mutable_inputs;                // all input tensors, as they are after the call
  std::vector<Tensors> input_gradients;  // by backward pass
  double forward_ms = 0;
  std::vector<double> backward_ms;
  bool uninitialised = false;
  bool returns_nothing = false;
  int workspace = -1;
  bool random = false;  // drew random numbers that are not those of the captured call
};

class Engine {
 public:
  Engine(const ReplayOptions& options, PythonCaller* caller)
      : options_(options),
        caller_(caller),
        device_(options.device),
        filter_(options.filter, "", "--filter", ""),
        tolerances_(ToleranceTable::from_environment()) {}

  CallReport replay(const StoredCall& stored);

 private:
  CapturedCall read(const StoredCall& stored) const;
  BoundCall bind(const CapturedCall& call, const RunInputs& inputs) const;
  RunResult run_once(const CapturedCall& call, c10::Device device);
  void run_backward(const CapturedCall& call, const RunInputs& inputs, c10::Device device, RunResult* run) const;
  std::vector<Check> compare_with_saved(const CapturedCall& call, const RunResult& run) const;
  std::vector<Check> compare_runs(const CapturedCall& call, const RunResult& run, const RunResult& reference) const;
  void compare_results(const CapturedCall& call, const RunResult& run, const Value& expected, const char* against,
                       std::vector<Check>* checks) const;
  Check compare_tensors(const CapturedCall& call, std::string what, const char* against, const at::Tensor& result,
                        const at::Tensor& expected) const;
  Check compare_values(const CapturedCall& call, std::string what, const char* against, const Value& result,
                       const Value& expected) const;

  const ReplayOptions& options_;
  PythonCaller* const caller_;
  const c10::Device device_;
  const OpFilter filter_;
  const ToleranceTable tolerances_;
  const Resolver resolver_;
  StateGate gate_;
};

CapturedCall Engine::read(const StoredCall& stored) const {
  CapturedCall call;
  read_file(stored, "input.pth", [&] { read_input(stored, &call); });
  if (stored.has(CallFile::kMeta)) {
    read_file(stored, "meta.json", [&] { call.meta = parse_meta(stored.read_text(CallFile::kMeta)); });
  }
  return call;
}

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
    bound.uninitialised = is_uninitialised(std::string_view(call.name).substr(call.name.rfind('.') + 1));
    bound.run = [this, name = call.name, args = inputs.args, kwargs = inputs.kwargs] {
      return caller_->call(name, args, kwargs);
    };
    return bound;
  }
  return resolver_.bind(call.name, inputs.args, inputs.kwargs);
}

RunResult Engine::run_once(const CapturedCall& call, c10::Device device) {
  RunInputs inputs = make_inputs(call.args, call.kwargs, call.aten, plan_for(call, device));
  BoundCall bound = bind(call, inputs);
  RunResult run;
  run.target = bound.target;
  run.uninitialised = bound.uninitialised;
  run.returns_nothing = bound.returns_nothing;
  run.workspace = bound.workspace;
  const bool has_state = !call.rng.is<None>();
  const StateGate::Pass pass(gate_, call.meta.process, has_state || bound.random);
  const NumThreads threads(call.meta.num_threads);
  {
    const ThreadState state(call.meta);
    bool same_numbers = false;
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
      run.raised = message_of(error);
      if (run.raised.empty()) run.raised = "an exception without a message";
    }
    run.forward_ms = stopwatch.stop();
    run.random = !same_numbers && !random.moved().is<None>();
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

// --- Comparison
// ------------------------------------------------------------------------------------------------------------

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

std::optional<at::Scalar> number_in(const Value& value) {
  if (const auto* number = value.get_if<bool>()) return at::Scalar(*number);
  if (const auto* number = value.get_if<int64_t>()) return at::Scalar(*number);
  if (const auto* number = value.get_if<double>()) return at::Scalar(*number);
  if (const auto* number = value.get_if<c10::complex<double>>()) return at::Scalar(*number);
  return std::nullopt;
}

std::string ordinal(size_t index, size_t count) {
  return count > 1 ? std::to_string(index) + "th" : "";
}

Check different(std::string what, const char* against, std::string note) {
  Check check;
  check.what = std::move(what);
  check.against = against;
  check.verdict = Verdict::kDiffers;
  check.note = std::move(note);
  check.diff.structure = check.note;
  check.diff.bits_equal = false;
  return check;
}

Check judged(std::string what, const char* against, TensorDiff diff) {
  Check check;
  check.what = std::move(what);
  check.against = against;
  check.verdict = diff.within() ? Verdict::kAgrees : Verdict::kDiffers;
  check.diff = std::move(diff);
  return check;
}

// Numbers mean nothing for these results, their shapes and dtypes still do.
void withdraw_numbers(std::vector<Check>* checks, const std::string& why) {
  for (Check& check : *checks) {
    if (!check.diff.structure.empty()) continue;
    check.verdict = Verdict::kNotComparable;
    check.note = why;
  }
}

Check Engine::compare_tensors(const CapturedCall& call, std::string what, const char* against, const at::Tensor& result,
                              const at::Tensor& expected) const {
  const Tolerance tolerance =
      expected.defined() ? tolerances_.allclose(call.name, expected.scalar_type()) : Tolerance{};
  return judged(std::move(what), against, diff_tensors(result, expected, tolerance));
}

Check Engine::compare_values(const CapturedCall& call, std::string what, const char* against, const Value& result,
                             const Value& expected) const {
  const auto* result_tensor = result.get_if<at::Tensor>();
  const auto* expected_tensor = expected.get_if<at::Tensor>();
  if (result_tensor && expected_tensor) {
    return compare_tensors(call, std::move(what), against, result_tensor->detach(), expected_tensor->detach());
  }
  const auto result_number = number_in(result);
  const auto expected_number = number_in(expected);
  if (result_number && expected_number && result.index() == expected.index()) {
    // A Python float is mostly some float32's value.
    return judged(std::move(what), against,
                  diff_tensors(c10::scalar_to_tensor(*result_number), c10::scalar_to_tensor(*expected_number),
                               tolerances_.allclose(call.name, at::kFloat)));
  }
  if (!result_tensor && !expected_tensor && !result_number && !expected_number &&
      describe(result) == describe(expected)) {
    return judged(std::move(what), against, {});
  }
  return different(std::move(what), against, describe(result) + " instead of " + describe(expected));
}

void Engine::compare_results(const CapturedCall& call, const RunResult& run, const Value& expected, const char* against,
                             std::vector<Check>* checks) const {
  // Python gives the lists themselves where the operator gives nothing; both are compared as changed inputs.
  if (run.returns_nothing) return;
  Values results, wanted;
  collect_leaves(run.result, &results);
  collect_leaves(expected, &wanted);
  if (results.size() != wanted.size()) {
    checks->push_back(
        different("", against,
                  std::to_string(results.size()) + " values returned, " + std::to_string(wanted.size()) + " expected"));
    return;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    checks->push_back(compare_values(call, ordinal(i, wanted.size()), against, results[i], wanted[i]));
    if (static_cast<int>(i) == run.workspace) {
      checks->back().verdict = Verdict::kNotComparable;
      checks->back().note = "scratch memory";
    }
  }
}

std::string gradient_name(size_t index, size_t pass) {
  return std::to_string(index) + "th input grad" + (pass > 0 ? " of backward pass " + std::to_string(pass + 1) : "");
}

std::vector<Check> Engine::compare_with_saved(const CapturedCall& call, const RunResult& run) const {
  std::vector<Check> checks;
  if (!call.meta.error.empty()) {
    if (run.raised.empty()) return {different("", "saved", "returned; the captured call raised: " + call.meta.error)};
    Check check = judged("", "saved", {});
    check.note = "raised, as the captured call did: " + run.raised;
    return {check};
  }
  if (!call.output) {
    Check check = judged("", "saved", {});
    check.verdict = Verdict::kNotComparable;
    check.note = "no output was saved";
    return {check};
  }
  compare_results(call, run, call.output->result, "saved", &checks);
  for (const auto& [index, expected] : call.output->mutated) {
    const std::string what = "input " + std::to_string(index) + " after the call";
    if (index >= run.mutable_inputs.size()) {
      checks.push_back(different(what, "saved", "there is no such input"));
      continue;
    }
    checks.push_back(compare_tensors(call, what, "saved", run.mutable_inputs[index].detach(), expected));
  }
  for (size_t pass = 0; pass < run.input_gradients.size(); ++pass) {
    const Tensors& expected = call.backward[pass].grad_inputs;
    const Tensors& gradients = run.input_gradients[pass];
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!expected[i].defined()) continue;
      checks.push_back(compare_tensors(call, gradient_name(i, pass), "saved",
                                       i < gradients.size() ? gradients[i] : at::Tensor(), expected[i]));
    }
  }
  if (run.uninitialised) withdraw_numbers(&checks, "uninitialised memory");
  if (run.random) withdraw_numbers(&checks, "random");
  return checks;
}

std::vector<Check> Engine::compare_runs(const CapturedCall& call, const RunResult& run,
                                        const RunResult& reference) const {
  std::vector<Check> checks;
  if (!reference.raised.empty() || !run.raised.empty()) {
    if (!reference.raised.empty() && !run.raised.empty()) return {};
    return {different(
        "", "cpu",
        run.raised.empty() ? "returned; on the CPU it raised: " + reference.raised : "raised: " + run.raised)};
  }
  compare_results(call, run, reference.result, "cpu", &checks);
  for (size_t pass = 0; pass < reference.input_gradients.size(); ++pass) {
    for (size_t i = 0; i < reference.input_gradients[pass].size(); ++i) {
      const at::Tensor& expected = reference.input_gradients[pass][i];
      if (!expected.defined()) continue;
      checks.push_back(compare_tensors(call, gradient_name(i, pass), "cpu", run.input_gradients[pass][i], expected));
    }
  }
  if (run.uninitialised) withdraw_numbers(&checks, "uninitialised memory");
  if (run.random || !call.rng.is<None>()) withdraw_numbers(&checks, "random");
  return checks;
}

// --- One call
// ----------------------------------------------------------------------------------------------------------------

CallReport Engine::replay(const StoredCall& stored) {
  CallReport report;
  report.path = stored.path();
  try {
    CapturedCall call = read(stored);
    report.name = call.name;
    if (!filter_.admits(call.name)) {
      report.status = Status::kLeftOut;
      return report;
    }
    refuse_unsupported(call);
    if (options_.acc_check && stored.has(CallFile::kOutput)) {
      read_file(stored, "output.pth", [&] { read_output(stored, &call); });
    }
    if (!options_.only_run_forward) read_backward(stored, &call);

    std::optional<RunResult> reference;
    if (options_.acc_check && !device_.is_cpu()) reference = run_once(call, c10::kCPU);
    for (int i = 0; i < options_.run_times; ++i) {
      const RunResult run = run_once(call, device_);
      report.target = run.target;
      if (!run.raised.empty() && call.meta.error.empty()) throw Error("raised: " + run.raised);
      report.forward_ms.push_back(run.forward_ms);
      report.backward_ms.insert(report.backward_ms.end(), run.backward_ms.begin(), run.backward_ms.end());
      // Of several runs the first that differs is reported, else the first.
      if (!options_.acc_check || report.differs()) continue;
      std::vector<Check> checks = compare_with_saved(call, run);
      if (reference) {
        for (Check& check : compare_runs(call, run, *reference)) checks.push_back(std::move(check));
      }
      CallReport judged_now;
      judged_now.checks = std::move(checks);
      if (i == 0 || judged_now.differs()) report.checks = std::move(judged_now.checks);
    }
  } catch (const std::exception& error) {
    report.status = Status::kCouldNotRun;
    report.reason = message_of(error);
  } catch (...) {
    report.status = Status::kCouldNotRun;
    report.reason = "an exception of unknown type";
  }
  return report;
}

void load_library(const std::string& name) {
  // Global, so that a backend finds the symbols of what was loaded before it.
  if (!dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL)) throw Error("cannot load " + name + ": " + dlerror());
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
      problems.push_back(message_of(error));
    }
  }

  Reporter reporter(options, calls.size());
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
    return run(*parsed.options, caller);
  } catch (const std::exception& error) {
    std::cerr << "run_op_from_data: " << message_of(error) << "\n";
    return kWrongUsage;
  }
}

}  // namespace op_tools::replay
