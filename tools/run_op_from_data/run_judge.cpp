#include "run_op_from_data/run_judge.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "compare/memory_beside.h"
#include "compare/metrics/tensor_diff.h"
#include "compare/rerun/variant_inputs.h"
#include "compare/saved_facts.h"
#include "hooks/error_origin.h"
#include "hooks/op_call.h"
#include "hooks/op_traits.h"

namespace op_tools::replay {
namespace {

std::vector<at::Tensor> input_tensors(const SavedCall& call) {
  std::vector<at::Tensor> tensors = flatten_tensors(call.args);
  for (const at::Tensor& tensor : flatten_tensors(call.kwargs)) tensors.push_back(tensor);
  for (at::Tensor& tensor : tensors) tensor = tensor.detach();
  return tensors;
}

// A Python function that refused its arguments before it came to an operator. Python code raises these; an
// operator that refuses them raises again.
bool is_refused_by_python(const SavedCall& call) {
  if (call.name.find("::") != std::string::npos || !call.aten.is<None>()) return false;
  const std::string& error = call.meta.error;
  return error.starts_with("ValueError") || error.starts_with("TypeError") || error.starts_with("AssertionError");
}

// A run as the judge reads it, with the gradients of a backward pass.
RunOutcome outcome_of(const TestRun& run, size_t pass) {
  RunOutcome outcome = run.outcome;
  if (pass < run.input_gradients.size()) outcome.gradients = run.input_gradients[pass];
  return outcome;
}

// The saved call, as if it had been run.
RunOutcome saved_outcome(const SavedCall& call, size_t pass) {
  RunOutcome saved;
  saved.raised = call.meta.error;
  saved.inputs = input_tensors(call);
  saved.written.resize(saved.inputs.size());
  if (call.output) {
    saved.result = call.output->result;
    if (!call.output->memory.is<None>()) read_memory(call.output->memory, saved);
    for (const auto& [index, value] : call.output->mutated) {
      const auto* tensor = value.get_if<at::Tensor>();
      if (!tensor || index >= saved.inputs.size() || index >= saved.written.size()) continue;
      saved.inputs[index] = tensor->detach();
      if (call.output->memory.is<None>()) saved.written[index] = true;
    }
  }
  if (pass < call.backward.size()) saved.gradients = gradient_list(call.backward[pass].grad_inputs);
  return saved;
}

Check plain_check(const char* against, TensorVerdict judgement) {
  Check check;
  check.judgement = std::move(judgement);
  check.against = against;
  return check;
}

void append(std::vector<Check> from, const char* against, size_t pass, std::vector<Check>* to) {
  for (Check& check : from) {
    if (pass > 0) check.subject += " of backward pass " + std::to_string(pass + 1);
    check.against = against;
    to->push_back(std::move(check));
  }
}

// That the numbers of two runs have the same distribution does not make them agree.
std::vector<Check> without_distributions(std::vector<Check> checks) {
  for (Check& check : checks) {
    if (check.judgement.method != AppliedMethod::kStatistical || check.judgement.verdict != Verdict::kAgrees) continue;
    check.judgement = not_judged(Unjudged::kRandom, "random");
  }
  return checks;
}

// The runs that the judge may ask for, of the forward call (no pass) or of a single backward pass.
RunAgain runs_of(References& references, std::optional<size_t> pass) {
  return [&references, pass](const RunVariant& variant) {
    return pass ? references.backward(variant, *pass) : references.forward(variant);
  };
}

// Judges `run` with `other` as its reference and the other way round: neither is known to be right.
std::vector<Check> judge_pair(const CallFacts& facts, const RunOutcome& run, const RunOutcome& other, bool gradients,
                              const RunAgain& golden) {
  const auto judge = [&](const RunOutcome& observed, const RunOutcome& reference) {
    const RunAgain again = [&](const RunVariant& variant) {
      return variant.kind == RunVariant::Kind::kReference ? reference : golden(variant);
    };
    CallJudge judge(facts, observed, again);
    return without_distributions(gradients ? judge.gradients() : judge.forward());
  };
  std::vector<Check> checks = judge(run, other);
  const bool same = std::all_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.judgement.verdict != Verdict::kAgrees || check.judgement.diff.bits_equal;
  });
  if (same) return checks;
  for (Check& other_way : judge(other, run)) {
    if (other_way.judgement.verdict != Verdict::kDiffers) continue;
    for (Check& check : checks) {
      if (check.subject != other_way.subject || check.judgement.verdict != Verdict::kAgrees) continue;
      // The difference is reported as that of this run, as everywhere.
      other_way.judgement.diff = check.judgement.diff;
      other_way.judgement.reason = "this run is right, the saved result is not";
      check.judgement = other_way.judgement;
    }
  }
  return checks;
}

}  // namespace

namespace {
bool moved_to_device(const TestRun& run) {
  const std::vector<at::Tensor> results = flatten_tensors(run.outcome.result);
  return std::any_of(results.begin(), results.end(), [](const at::Tensor& result) { return !result.is_cpu(); });
}

bool is_on_cuda(const TestRun& run) {
  const std::vector<at::Tensor> results = flatten_tensors(run.outcome.result);
  return std::any_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.is_cuda(); });
}
}  // namespace

CallFacts RunJudge::facts_of(const SavedCall& call, const TestRun& run) const {
  CallFacts facts;
  facts.name = call.name;
  facts.options.method = options_.method.value_or(CompareMethod::kRelative);
  facts.options.tolerances = &tolerances_;
  facts.options.hands_out = !options_.expected.empty();
  facts.options.golden = call.rng.is<None>();  // float64 draws other numbers
  facts.options.strides = false;               // captures hold none of the results'
  facts.device.autocast = autocast_of(call);
  facts.device.tf32 =
      (device_of(call).is_cuda() || is_on_cuda(run)) && multiplies_in_tf32(call.name, call.meta.state.process);
  facts.device.names_device = true;
  facts.random.drawn = run.random;
  facts.pass.of_graph = is_graph_call(call.name);
  facts.memory.uninitialized = run.bound.uninitialized;
  facts.memory.workspace = run.bound.workspace;
  facts.args = call.args;
  facts.kwargs = call.kwargs;
  facts.before = input_tensors(call);
  return facts;
}

CallFacts RunJudge::recorded_facts(const SavedCall& call) const {
  CallFacts facts;
  read_facts(call.judged, facts);
  facts.name = call.name;
  if (options_.method) facts.options.method = *options_.method;
  facts.options.tolerances = &tolerances_;
  facts.options.hands_out = !options_.expected.empty();
  facts.args = call.args;
  facts.kwargs = call.kwargs;
  facts.before = input_tensors(call);
  facts.memory.overlapping = reads_what_it_writes(facts.before, facts.memory.written_inputs);
  return facts;
}

std::vector<Check> RunJudge::saved_failure(const SavedCall& call, References& references) const {
  std::vector<Check> checks;
  CallFacts facts = recorded_facts(call);
  const RunOutcome saved = saved_outcome(call, 0);
  if (call.output || !saved.raised.empty()) {
    append(CallJudge(facts, saved, runs_of(references, std::nullopt)).forward(), "saved", 0, &checks);
  }
  if (call.output && !call.output->memory.is<None>()) {
    const std::string beside = read_written_beside(call.output->memory);
    if (!beside.empty()) append({MemoryBeside::check(beside)}, "saved", 0, &checks);
  }
  for (size_t pass = 0; pass < call.backward.size(); ++pass) {
    facts.pass.incomplete = call.backward[pass].incomplete;
    const RunOutcome with_gradients = saved_outcome(call, pass);
    append(CallJudge(facts, with_gradients, runs_of(references, pass)).gradients(), "saved", pass, &checks);
  }
  return checks;
}

namespace {

// Inputs after the call are compared only where the file has them.
void drop_unknown_inputs(const SavedOutput& output, RunOutcome& now, RunOutcome& saved) {
  for (size_t i = 0; i < std::min(now.inputs.size(), saved.inputs.size()); ++i) {
    const bool known =
        std::any_of(output.mutated.begin(), output.mutated.end(), [i](const auto& entry) { return entry.first == i; });
    if (!known) now.inputs[i] = saved.inputs[i] = at::Tensor();
  }
}

// A call that writes an input may have left the same bits in it: that it was saved says that it was written.
void mark_written_inputs(const SavedOutput& output, RunOutcome& now, RunOutcome& saved) {
  for (const auto& [index, value] : output.mutated) {
    if (index < now.written.size()) now.written[index] = true;
    if (index < saved.written.size()) saved.written[index] = true;
  }
}

bool changes_inputs(const SavedCall& call, const TestRun& run) {
  const std::vector<at::Tensor> before = input_tensors(call);
  const std::vector<at::Tensor>& after = run.outcome.inputs;
  if (before.size() != after.size()) return false;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].defined() && after[i].defined() && !same_bits(before[i], after[i])) return true;
  }
  return false;
}

// Those about results that no other check has named.
void add_new(const std::vector<Check>& from, std::vector<Check>* checks) {
  for (const Check& check : from) {
    for (Check& known : *checks) {
      if (known.subject == check.subject && known.judgement.verdict == Verdict::kAgrees) {
        known.judgement.verdict = Verdict::kDiffers;
        known.judgement.kind = check.judgement.kind;
        known.judgement.reason = check.judgement.reason;
      }
    }
  }
}

// A copy to the CPU may stand for a copy to another device.
void look_at_devices(const SavedCall& call, const TestRun& run, CallFacts* facts) {
  const CallArguments arguments{call.args, call.kwargs, call.aten};
  facts->device.names_device = arguments_on_cpu(arguments, base_name(call.name), device_of(call)).names_device;
  note_result_devices(flatten_tensors(run.outcome.result), run.outcome.inputs, facts);
}

// A fact missing in the file from which a difference may come; null: none.
const char* what_is_missing(const SavedCall& call, const TestRun& run) {
  if (call.lacks.arguments) return "the dump may lack arguments of the call, which are no tensors";
  if (call.lacks.inputs_before && changes_inputs(call, run))
    return "the dump may have the inputs as the call left them";
  return nullptr;
}

constexpr const char* kNoOutput = "no output was saved";

// A call that raised when it was captured: has it raised again?
Check check_of_error(const SavedCall& call, const TestRun& run) {
  const std::string& error = call.meta.error;
  if (is_ended_by_program(error)) return plain_check("saved", not_judged(Unjudged::kRaised, error));
  if (!run.outcome.raised.empty()) {
    TensorVerdict same;
    same.reason = "raised, as the captured call did: " + run.outcome.raised;
    return plain_check("saved", std::move(same));
  }
  if (is_refused_by_autograd_or_vmap(error)) {
    return plain_check("saved", not_judged(Unjudged::kRaised, "autograd or vmap refused it: " + error));
  }
  if (is_refused_for_devices(error, on_several_devices(call.meta.inputs))) {
    return plain_check("saved", not_judged(Unjudged::kRaised, "its devices were refused: " + error));
  }
  if (is_refused_by_python(call))
    return plain_check("saved", not_judged(Unjudged::kRaised, "the Python function raised: " + error));
  return plain_check("saved", differs("raised", "returned; the captured call raised: " + error));
}

}  // namespace

std::vector<Check> RunJudge::saved_memory(const SavedCall& call, const TestRun& run, References& references) const {
  const bool is_capture = call.is_ours && call.has_meta && !call.from_ditorch && call.judged.is<None>();
  const auto on_cpu = [](const TensorMeta& tensor) { return tensor.device.is_cpu(); };
  // As live: on the CPU a second run would only repeat it; random and unwritten memory has no right form.
  if (!is_capture || !call.rng.is<None>() || run.random) return {};
  const bool is_alone = std::all_of(call.meta.outputs.begin(), call.meta.outputs.end(), on_cpu);
  if (is_alone || run.bound.uninitialized || run.bound.workspace >= 0) return {};
  RunOutcome saved = saved_outcome(call, 0);
  const std::vector<at::Tensor> results = flatten_tensors(saved.result);
  const bool is_cpu_run = std::all_of(run.outcome.inputs.begin(), run.outcome.inputs.end(),
                                      [](const at::Tensor& input) { return input.is_cpu(); }) &&
                          !moved_to_device(run);
  const RunOutcome cpu = is_cpu_run ? run.outcome : references.forward({RunVariant::Kind::kReference});
  if (!cpu.returned() || cpu.strides.size() != results.size() || call.meta.outputs.size() < results.size()) return {};
  CallFacts facts = facts_of(call, run);
  facts.options.strides = true;
  for (size_t i = 0; i < results.size(); ++i) {
    const TensorMeta& result = call.meta.outputs[i];
    const auto is_elsewhere = [&](const TensorMeta& input) { return input.device != result.device; };
    if (std::any_of(call.meta.inputs.begin(), call.meta.inputs.end(), is_elsewhere))
      return {};  // a copy between devices
    if (result.layout != at::kStrided || results[i].layout() != at::kStrided) return {};
    saved.strides.emplace_back(result.stride.begin(), result.stride.end());
  }
  saved.aliases = cpu.aliases;  // captures do not say in whose memory the results were
  const RunAgain again = [&](const RunVariant& variant) {
    return variant.kind == RunVariant::Kind::kReference ? cpu : references.forward(variant);
  };
  return CallJudge(facts, saved, again).memory();
}

std::vector<Check> RunJudge::against_saved(const SavedCall& call, const TestRun& run, References& references) const {
  if (!call.meta.error.empty()) return {check_of_error(call, run)};
  std::vector<Check> checks;
  const CallFacts facts = facts_of(call, run);
  if (call.output) {
    RunOutcome saved = saved_outcome(call, 0), now = outcome_of(run, 0);
    if (run.bound.returns_nothing) saved.result = {};
    mark_written_inputs(*call.output, now, saved);
    if (call.lacks.inputs_after) drop_unknown_inputs(*call.output, now, saved);
    auto forward = judge_pair(facts, now, saved, false, runs_of(references, std::nullopt));
    append(std::move(forward), "saved", 0, &checks);
    add_new(saved_memory(call, run, references), &checks);
  } else {
    checks.push_back(plain_check("saved", not_judged(Unjudged::kNotSaved, kNoOutput)));
  }
  CallFacts backward = facts;
  if (call.node_gradients) backward.options.golden = false;
  for (size_t pass = 0; pass < run.input_gradients.size(); ++pass) {
    RunOutcome now = outcome_of(run, pass);
    RunOutcome saved = saved_outcome(call, pass);
    // ditorch names the gradients in another order, and says nothing of inputs.
    saved.gradients.resize(std::max(saved.gradients.size(), now.gradients.size()));
    now.gradients.resize(saved.gradients.size());
    backward.pass.incomplete = pass >= call.backward.size() || call.backward[pass].incomplete;
    for (size_t i = 0; backward.pass.incomplete && i < saved.gradients.size(); ++i) {
      if (!saved.gradients[i].defined()) now.gradients[i] = at::Tensor();
    }
    auto gradients = judge_pair(backward, now, saved, true, runs_of(references, pass));
    for (Check& check : gradients) {
      if (check.judgement.kind != "presence") continue;
      const size_t i = check.index.value_or(0);
      const bool is_saved = i < saved.gradients.size() && saved.gradients[i].defined();
      check.judgement.reason =
          is_saved ? "a gradient was saved, now there is none" : "no gradient was saved, now there is one";
    }
    append(std::move(gradients), "saved", pass, &checks);
  }
  for (Check& check : checks) {  // gradients that agree say nothing of the results
    if (call.output || check.judgement.verdict != Verdict::kAgrees) continue;
    check.judgement = not_judged(Unjudged::kNotSaved, kNoOutput);
  }
  if (const char* missing = what_is_missing(call, run)) {
    for (Check& check : checks) {
      if (check.judgement.verdict == Verdict::kDiffers) check.judgement = not_judged(Unjudged::kNotSaved, missing);
    }
  }
  return checks;
}

std::vector<Check> RunJudge::against_cpu(const SavedCall& call, const TestRun& run, References& references) const {
  const bool is_failure = !call.judged.is<None>();
  CallFacts facts = is_failure ? recorded_facts(call) : facts_of(call, run);
  if (!is_failure) {
    facts.random.drawn = run.random || !call.rng.is<None>();  // the CPU's numbers are others
    facts.options.strides = true;                             // this run's are known
    look_at_devices(call, run, &facts);
  }
  std::vector<Check> checks;
  if (!is_failure) {
    const RunOutcome reference = references.forward({RunVariant::Kind::kReference});
    const bool run_raised = !run.outcome.raised.empty(), cpu_raised = !reference.raised.empty();
    if (run_raised && cpu_raised) return {};
    if (run_raised && reference.returned()) {
      return {plain_check("cpu", differs("raised", "raised: " + run.outcome.raised))};
    }
    if (cpu_raised && lacks_kernel(reference.raised)) {
      return {plain_check("cpu", not_judged(Unjudged::kNoReference, "the CPU has no kernel for it"))};
    }
    if (cpu_raised) {
      return {plain_check("cpu", differs("raised", "returned; on the CPU it raised: " + reference.raised))};
    }
  }
  const auto judged = [&](std::vector<Check> from) {
    return is_failure ? std::move(from) : without_distributions(std::move(from));
  };
  append(judged(CallJudge(facts, run.outcome, runs_of(references, std::nullopt)).forward()), "cpu", 0, &checks);
  for (size_t pass = 0; pass < run.input_gradients.size(); ++pass) {
    if (is_failure) facts.pass.incomplete = call.backward[pass].incomplete;
    const RunOutcome with_gradients = outcome_of(run, pass);
    append(judged(CallJudge(facts, with_gradients, runs_of(references, pass)).gradients()), "cpu", pass, &checks);
  }
  return checks;
}

std::vector<Check> RunJudge::alone(const SavedCall& call, const TestRun& run, References& references) const {
  CallFacts facts = call.judged.is<None>() ? facts_of(call, run) : recorded_facts(call);
  facts.device.alone = true;
  std::vector<Check> checks;
  append(CallJudge(facts, run.outcome, runs_of(references, std::nullopt)).forward(), "cpu", 0, &checks);
  for (size_t pass = 0; pass < run.input_gradients.size(); ++pass) {
    const RunOutcome with_gradients = outcome_of(run, pass);
    append(CallJudge(facts, with_gradients, runs_of(references, pass)).gradients(), "cpu", pass, &checks);
  }
  return checks;
}

}  // namespace op_tools::replay
