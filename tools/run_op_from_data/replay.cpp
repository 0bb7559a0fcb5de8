#include "run_op_from_data/replay.h"

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
#include <tuple>
#include <utility>

#include "capture/call_store.h"
#include "capture/random_state.h"
#include "compare/call_judge.h"
#include "compare/golden.h"
#include "compare/tolerance.h"
#include "fallback/cpu_runner.h"
#include "hooks/ended_by_program.h"
#include "hooks/error.h"
#include "hooks/log.h"
#include "hooks/op_filter.h"
#include "hooks/op_traits.h"
#include "run_op_from_data/program_state.h"
#include "run_op_from_data/report.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "run_op_from_data/summary.h"
#include "run_op_from_data/times.h"
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
  bool is_ours = false;       // written by OpCapture, which writes meta.json last
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
  call->is_ours = find_key(file, "id") != nullptr;
  call->from_ditorch = find_key(file, "identifier") && !call->is_ours;
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

// A program that was killed while it wrote a call leaves whole files, but not all of them.
std::string what_was_cut_off(const StoredCall& stored, const CapturedCall& call) {
  const char* const why = " is missing: its program ended while the call was written";
  if (call.is_ours && !stored.has(CallFile::kMeta)) return std::string("cut off: meta.json") + why;
  const auto pass = static_cast<uint32_t>(call.backward.size());
  const bool half =
      !call.from_ditorch && stored.has(CallFile::kGradInputs, pass) != stored.has(CallFile::kGradOutputs, pass);
  return half ? std::string("cut off: half of a backward pass") + why : "";
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

// The float64 runs of one call, made when they are asked for.
using GoldenRuns = std::function<const RunResult&(const RunKind&)>;

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
  // `golden`: in float64 instead, on the CPU.
  RunResult run_once(const CapturedCall& call, c10::Device device, const RunKind* golden = nullptr);
  void run_backward(const CapturedCall& call, const RunInputs& inputs, c10::Device device, RunResult* run) const;
  std::vector<Check> compare_with_saved(const CapturedCall& call, const RunResult& run, GoldenRuns& golden) const;
  std::vector<Check> compare_runs(const CapturedCall& call, const RunResult& run, const RunResult& reference,
                                  GoldenRuns& golden) const;
  CallFacts facts_of(const CapturedCall& call, const RunResult& run) const;

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
  try {
    return resolver_.bind(call.name, inputs.args, inputs.kwargs);
  } catch (const PythonOnly& error) {
    throw Error(std::string(error.what()) + (caller_ ? ", and is none of the operator functions that files may name"
                                                     : "; use python -m op_tools.run_op_from_data"));
  }
}

// The same inputs in float64, changed a little where the run is to show how exactly its result can be known.
RunInputs in_float64(const RunInputs& inputs, const RunKind& kind) {
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
  if (kind.precision == RunKind::Precision::kPerturbed) perturb(made.tensors, inputs.tensors, kind, std::nullopt);
  return made;
}

RunResult Engine::run_once(const CapturedCall& call, c10::Device device, const RunKind* golden) {
  RunInputs inputs = make_inputs(call.args, call.kwargs, call.aten, plan_for(call, device));
  if (golden) inputs = in_float64(inputs, *golden);
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
    RecordedMeta meta = call.meta;
    if (golden) meta.autocast.clear();
    const ThreadState state(meta);
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

std::vector<at::Tensor> input_tensors(const CapturedCall& call) {
  std::vector<at::Tensor> tensors = flatten_tensors(call.args);
  for (const at::Tensor& tensor : flatten_tensors(call.kwargs)) tensors.push_back(tensor);
  for (at::Tensor& tensor : tensors) tensor = tensor.detach();
  return tensors;
}

// A run as the judge reads it.
CallRun judged_run(const RunResult& run, size_t pass) {
  CallRun judged;
  judged.raised = run.raised;
  // Python gives the lists themselves where the operator gives nothing; both are compared as changed inputs.
  if (!run.returns_nothing) judged.result = run.result;
  for (const at::Tensor& tensor : run.mutable_inputs) judged.inputs.push_back(tensor.detach());
  judged.written.resize(judged.inputs.size());
  if (pass < run.input_gradients.size()) judged.gradients = run.input_gradients[pass];
  return judged;
}

// What was saved, as if it had been run.
CallRun saved_run(const CapturedCall& call, const RunResult& run, size_t pass) {
  CallRun saved;
  saved.raised = call.meta.error;
  if (call.output && !run.returns_nothing) saved.result = call.output->result;
  saved.inputs = input_tensors(call);
  saved.written.resize(saved.inputs.size());
  if (call.output) {
    for (const auto& [index, tensor] : call.output->mutated) {
      if (index >= saved.inputs.size()) continue;
      saved.inputs[index] = tensor;
      saved.written[index] = true;
    }
  }
  if (pass < call.backward.size()) {
    saved.gradients = call.backward[pass].grad_inputs;
    // ditorch names the gradients in another order, and says nothing of inputs.
    saved.gradients.resize(std::max(saved.gradients.size(), run.input_gradients[pass].size()));
  }
  return saved;
}

CallFacts Engine::facts_of(const CapturedCall& call, const RunResult& run) const {
  CallFacts facts;
  facts.name = call.name;
  facts.method = options_.method;
  facts.tolerances = &tolerances_;
  facts.golden = call.rng.is<None>();  // float64 draws other numbers
  facts.strides = false;               // files keep none of the results'
  if (!call.meta.autocast.empty()) facts.autocast = call.meta.autocast.front().dtype;
  facts.names_device = true;
  facts.random = run.random;
  facts.uninitialised = run.uninitialised;
  facts.workspace = run.workspace;
  facts.args = call.args;
  facts.kwargs = call.kwargs;
  // ditorch does not save what a call did to its inputs.
  if (!call.from_ditorch) facts.before = input_tensors(call);
  return facts;
}

Check plain_check(const char* against, Judgement judgement) {
  Check check;
  check.against = against;
  check.judgement = std::move(judgement);
  return check;
}

void append(std::vector<op_tools::Check> from, const char* against, size_t pass, std::vector<Check>* to) {
  for (op_tools::Check& one : from) {
    // That the numbers of two runs have one distribution does not make them agree.
    if (one.judgement.method == "statistical" && one.judgement.verdict == Verdict::kAgrees) {
      one.judgement = op_tools::not_comparable("random");
    }
    if (pass > 0) one.what += " of backward pass " + std::to_string(pass + 1);
    Check check;
    static_cast<op_tools::Check&>(check) = std::move(one);
    check.against = against;
    to->push_back(std::move(check));
  }
}

// Judges `run` with `other` as its reference. `both_ways`: neither is known to be right, so `other` is judged, too.
std::vector<op_tools::Check> judge_pair(const CallFacts& facts, const CallRun& run, const CallRun& other,
                                        bool gradients, bool both_ways, const CallJudge::RunAgain& golden) {
  const auto judge = [&](const CallRun& observed, const CallRun& reference) {
    const CallJudge::RunAgain again = [&](const RunKind& kind) {
      return kind.precision == RunKind::Precision::kSame ? reference : golden(kind);
    };
    CallJudge judge(facts, observed, again);
    return gradients ? judge.gradients() : judge.forward();
  };
  std::vector<op_tools::Check> checks = judge(run, other);
  const bool same = std::all_of(checks.begin(), checks.end(), [](const op_tools::Check& check) {
    return check.judgement.verdict != Verdict::kAgrees || check.judgement.diff.bits_equal;
  });
  if (same || !both_ways) return checks;
  for (op_tools::Check& other_way : judge(other, run)) {
    if (other_way.judgement.verdict != Verdict::kDiffers) continue;
    for (op_tools::Check& check : checks) {
      if (check.what != other_way.what || check.judgement.verdict != Verdict::kAgrees) continue;
      // The difference is told as that of this run, as everywhere.
      other_way.judgement.diff = check.judgement.diff;
      other_way.judgement.reason = "this run is right, what was saved is not";
      check.judgement = other_way.judgement;
    }
  }
  return checks;
}

std::vector<Check> Engine::compare_with_saved(const CapturedCall& call, const RunResult& run,
                                              GoldenRuns& golden) const {
  if (!call.meta.error.empty()) {
    if (is_ended_by_program(call.meta.error)) {
      return {plain_check("saved", op_tools::not_comparable(call.meta.error))};
    }
    if (run.raised.empty()) {
      return {
          plain_check("saved", op_tools::differs("raised", "returned; the captured call raised: " + call.meta.error))};
    }
    Judgement same;
    same.reason = "raised, as the captured call did: " + run.raised;
    return {plain_check("saved", std::move(same))};
  }
  std::vector<Check> checks;
  const CallFacts facts = facts_of(call, run);
  const auto of_pass = [&](size_t pass) -> CallJudge::RunAgain {
    return [&golden, pass](const RunKind& kind) { return judged_run(golden(kind), pass); };
  };
  if (call.output) {
    auto forward = judge_pair(facts, judged_run(run, 0), saved_run(call, run, 0), false, true, of_pass(0));
    // A capture knows of changed inputs by the schema and by version counters, and some operators move none (batch_norm
    // and its running statistics). That nothing was saved does not mean that nothing was written.
    std::erase_if(forward, [](const op_tools::Check& check) { return check.judgement.kind == "changed input"; });
    append(std::move(forward), "saved", 0, &checks);
  } else {
    checks.push_back(plain_check("saved", op_tools::not_comparable("no output was saved")));
  }
  CallFacts backward = facts;
  backward.incomplete = true;  // gradients that nobody saved
  if (call.from_ditorch) backward.golden = false;
  for (size_t pass = 0; pass < run.input_gradients.size(); ++pass) {
    CallRun now = judged_run(run, pass);
    const CallRun saved = saved_run(call, run, pass);
    now.gradients.resize(saved.gradients.size());
    for (size_t i = 0; i < saved.gradients.size(); ++i) {
      if (!saved.gradients[i].defined()) now.gradients[i] = at::Tensor();
    }
    append(judge_pair(backward, now, saved, true, true, of_pass(pass)), "saved", pass, &checks);
  }
  return checks;
}

std::vector<Check> Engine::compare_runs(const CapturedCall& call, const RunResult& run, const RunResult& reference,
                                        GoldenRuns& golden) const {
  if (!reference.raised.empty() || !run.raised.empty()) {
    if (!reference.raised.empty() && !run.raised.empty()) return {};
    return {plain_check(
        "cpu", op_tools::differs("raised", run.raised.empty() ? "returned; on the CPU it raised: " + reference.raised
                                                              : "raised: " + run.raised))};
  }
  std::vector<Check> checks;
  CallFacts facts = facts_of(call, run);
  facts.random = run.random || !call.rng.is<None>();  // the CPU's numbers are others
  const auto of_pass = [&](size_t pass) -> CallJudge::RunAgain {
    return [&golden, pass](const RunKind& kind) { return judged_run(golden(kind), pass); };
  };
  append(judge_pair(facts, judged_run(run, 0), judged_run(reference, 0), false, false, of_pass(0)), "cpu", 0, &checks);
  for (size_t pass = 0; pass < reference.input_gradients.size(); ++pass) {
    append(judge_pair(facts, judged_run(run, pass), judged_run(reference, pass), true, false, of_pass(pass)), "cpu",
           pass, &checks);
  }
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
    report.missing = what_was_cut_off(stored, call);

    std::optional<RunResult> reference;
    if (options_.acc_check && !device_.is_cpu()) reference = run_once(call, c10::kCPU);
    std::map<std::tuple<int, int, bool>, RunResult> golden_runs;
    GoldenRuns golden = [&](const RunKind& kind) -> const RunResult& {
      const std::tuple key(static_cast<int>(kind.precision), kind.sample, kind.coarse);
      const auto known = golden_runs.find(key);
      if (known != golden_runs.end()) return known->second;
      RunResult run;
      try {
        run = run_once(call, c10::kCPU, &kind);
      } catch (const std::exception& error) {
        run.raised = message_of(error);
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
      std::vector<Check> checks = compare_with_saved(call, run, golden);
      if (reference) {
        for (Check& check : compare_runs(call, run, *reference, golden)) checks.push_back(std::move(check));
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
      problems.push_back(message_of(error));
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
    std::cerr << "run_op_from_data: " << message_of(error) << "\n";
    return kWrongUsage;
  }
}

}  // namespace op_tools::replay
