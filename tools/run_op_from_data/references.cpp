#include "run_op_from_data/references.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "compare/saved_facts.h"
#include "hooks/op_traits.h"
#include "run_op_from_data/run_inputs.h"
#include "tensor/exception_text.h"

namespace op_tools::replay {

References::References(const SavedCall& call, StateGate& gate, ReplayableCall::Operator run)
    : call_(call), gate_(gate), operator_(std::move(run)) {}

const ReplayableCall& References::replayable() {
  if (replayable_) return *replayable_;
  const RunInputs inputs = make_inputs(call_, plan_for(call_, c10::kCPU));
  ReplayableCall::Saved saved;
  saved.level = level_of(call_);
  saved.name = call_.name;
  saved.arguments =
      arguments_on_cpu({inputs.args, inputs.kwargs, inputs.aten}, base_name(call_.name), device_of(call_)).arguments;
  saved.autocast = autocast_of(call_);
  saved.run = operator_;
  if (!call_.judged.is<None>()) {
    CallFacts facts;
    read_facts(call_.judged, facts);
    saved.autocast = facts.device.autocast;
    saved.written_inputs = facts.memory.written_inputs;
  }
  {
    ProgramState without_autocast = call_.meta.state;  // ReplayableCall applies autocast where a run wants it
    without_autocast.autocast.clear();
    const ThreadState state(without_autocast);
    saved.grad_enabled = c10::GradMode::is_enabled();
    saved.inference_mode = c10::InferenceMode::is_enabled();
    saved.keys = c10::impl::tls_local_dispatch_key_set();
  }
  replayable_ = std::make_unique<const ReplayableCall>(std::move(saved));
  return *replayable_;
}

const RunOutcome& References::run(const RunVariant& variant, size_t pass) {
  const Key key(variant.kind, variant.sample, variant.coarse, pass);
  if (const auto known = runs_.find(key); known != runs_.end()) return known->second;
  RunOutcome outcome;
  try {
    const Value* state = find_key(call_.rng, "cpu");
    const StateGate::Pass gate(gate_, call_.meta.state.process, alone_);
    const NumThreads threads(call_.meta.state.num_threads);
    const Tensors arriving = pass == kNoPass ? Tensors() : gradient_list(call_.backward[pass].grad_outputs);
    outcome =
        replayable().run(variant, pass == kNoPass ? nullptr : &arriving, state ? state->get_if<at::Tensor>() : nullptr);
  } catch (const std::exception& error) {
    outcome.impossible = exception_text(error);
  }
  return runs_.emplace(key, std::move(outcome)).first->second;
}

RunOutcome References::forward(const RunVariant& variant) {
  if (!call_.backward.empty() && !call_.node_gradients) {
    // A single run serves both; whether it can go backward says nothing about the forward call.
    if (const RunOutcome& both = run(variant, 0); both.returned()) return both;
  }
  return run(variant, kNoPass);
}

RunOutcome References::backward(const RunVariant& variant, size_t pass) {
  if (!call_.node_gradients) return run(variant, pass);
  RunOutcome outcome = run(variant, kNoPass);
  if (!outcome.returned()) return outcome;
  outcome.arriving = gradient_list(call_.backward[pass].grad_outputs);
  outcome.gradients = last_node_gradients(flatten_tensors(outcome.result), outcome.arriving, outcome.made_from->edges(),
                                          /*keep_graph=*/true);
  return outcome;
}

}  // namespace op_tools::replay
