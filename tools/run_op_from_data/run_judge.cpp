#include "run_op_from_data/run_judge.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "hooks/ended_by_program.h"

namespace op_tools::replay {
namespace {

std::vector<at::Tensor> input_tensors(const CapturedCall& call) {
  std::vector<at::Tensor> tensors = flatten_tensors(call.args);
  for (const at::Tensor& tensor : flatten_tensors(call.kwargs)) tensors.push_back(tensor);
  for (at::Tensor& tensor : tensors) tensor = tensor.detach();
  return tensors;
}

// A Python function that refused its arguments before it came to an operator. These are what Python code raises; an
// operator that refuses them raises again.
bool is_refused_by_python(const CapturedCall& call) {
  if (call.name.find("::") != std::string::npos || !call.aten.is<None>()) return false;
  const std::string& error = call.meta.error;
  return error.starts_with("ValueError") || error.starts_with("TypeError") || error.starts_with("AssertionError");
}

// A run as the judge reads it.
RunOutcome judged_run(const RunResult& run, size_t pass) {
  RunOutcome judged;
  judged.raised = run.raised;
  // Python gives the lists themselves where the operator gives nothing; both are compared as changed inputs.
  if (!run.returns_nothing) judged.result = run.result;
  for (const at::Tensor& tensor : run.mutable_inputs) judged.inputs.push_back(tensor.detach());
  judged.written.resize(judged.inputs.size());
  if (pass < run.input_gradients.size()) judged.gradients = run.input_gradients[pass];
  return judged;
}

// What was saved, as if it had been run.
RunOutcome saved_run(const CapturedCall& call, const RunResult& run, size_t pass) {
  RunOutcome saved;
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

Check plain_check(const char* against, TensorVerdict judgement) {
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
std::vector<op_tools::Check> judge_pair(const CallFacts& facts, const RunOutcome& run, const RunOutcome& other,
                                        bool gradients, bool both_ways, const CallJudge::RunAgain& golden) {
  const auto judge = [&](const RunOutcome& observed, const RunOutcome& reference) {
    const CallJudge::RunAgain again = [&](const RunVariant& variant) {
      return variant.kind == RunVariant::Kind::kReference ? reference : golden(variant);
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

}  // namespace

CallFacts RunJudge::facts_of(const CapturedCall& call, const RunResult& run) const {
  CallFacts facts;
  facts.name = call.name;
  facts.method = options_.method;
  facts.tolerances = &tolerances_;
  facts.golden = call.rng.is<None>();  // float64 draws other numbers
  facts.strides = false;               // files keep none of the results'
  if (!call.meta.autocast.empty()) facts.autocast = call.meta.autocast.front().dtype;
  facts.names_device = true;
  facts.random = run.random;
  facts.uninitialized = run.uninitialized;
  facts.workspace = run.workspace;
  facts.args = call.args;
  facts.kwargs = call.kwargs;
  // ditorch does not save what a call did to its inputs.
  if (!call.from_ditorch) facts.before = input_tensors(call);
  return facts;
}

std::vector<Check> RunJudge::against_saved(const CapturedCall& call, const RunResult& run,
                                           const GoldenRuns& golden) const {
  if (!call.meta.error.empty()) {
    if (is_ended_by_program(call.meta.error)) {
      return {plain_check("saved", op_tools::not_comparable(call.meta.error))};
    }
    if (run.raised.empty() && is_refused_around(call.meta.error)) {
      return {plain_check("saved", op_tools::not_comparable("autograd or vmap refused it: " + call.meta.error))};
    }
    if (run.raised.empty() && is_refused_by_python(call)) {
      return {plain_check("saved", op_tools::not_comparable("the Python function raised: " + call.meta.error))};
    }
    if (run.raised.empty()) {
      return {
          plain_check("saved", op_tools::differs("raised", "returned; the captured call raised: " + call.meta.error))};
    }
    TensorVerdict same;
    same.reason = "raised, as the captured call did: " + run.raised;
    return {plain_check("saved", std::move(same))};
  }
  std::vector<Check> checks;
  const CallFacts facts = facts_of(call, run);
  const auto of_pass = [&](size_t pass) -> CallJudge::RunAgain {
    return [&golden, pass](const RunVariant& variant) { return judged_run(golden(variant), pass); };
  };
  if (call.output) {
    append(judge_pair(facts, judged_run(run, 0), saved_run(call, run, 0), false, true, of_pass(0)), "saved", 0,
           &checks);
  } else {
    checks.push_back(plain_check("saved", op_tools::not_comparable("no output was saved")));
  }
  CallFacts backward = facts;
  backward.incomplete = true;  // gradients that nobody saved
  if (call.from_ditorch) backward.golden = false;
  for (size_t pass = 0; pass < run.input_gradients.size(); ++pass) {
    RunOutcome now = judged_run(run, pass);
    const RunOutcome saved = saved_run(call, run, pass);
    now.gradients.resize(saved.gradients.size());
    for (size_t i = 0; i < saved.gradients.size(); ++i) {
      if (!saved.gradients[i].defined()) now.gradients[i] = at::Tensor();
    }
    append(judge_pair(backward, now, saved, true, true, of_pass(pass)), "saved", pass, &checks);
  }
  return checks;
}

std::vector<Check> RunJudge::against_cpu(const CapturedCall& call, const RunResult& run, const RunResult& reference,
                                         const GoldenRuns& golden) const {
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
    return [&golden, pass](const RunVariant& variant) { return judged_run(golden(variant), pass); };
  };
  append(judge_pair(facts, judged_run(run, 0), judged_run(reference, 0), false, false, of_pass(0)), "cpu", 0, &checks);
  for (size_t pass = 0; pass < reference.input_gradients.size(); ++pass) {
    append(judge_pair(facts, judged_run(run, pass), judged_run(reference, pass), true, false, of_pass(pass)), "cpu",
           pass, &checks);
  }
  return checks;
}

}  // namespace op_tools::replay
