#include "hooks/backward_source.h"

#include <vector>

namespace op_tools {

void BackwardSource::prepare(OpCall& call) {
  if (!call.grad_enabled) return;
  if (chain_.wants(call.hooks, &Wants::nodes)) new_nodes_.emplace();
  if (!chain_.wants(call.hooks, &Wants::gradients)) return;
  std::vector<at::Tensor> inputs;
  inputs.reserve(8);  // most calls have fewer
  call.frame().visit_inputs([&](const at::Tensor& tensor) { inputs.push_back(tensor); });
  collector_ = GradientCollector::before_call(inputs);
}

void BackwardSource::conclude(OpCall& call) {
  if (!new_nodes_ && !collector_) return;
  std::vector<at::Tensor> outputs;
  call.frame().visit_result([&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  std::optional<WatchedNodes> watched;
  if (new_nodes_) watched.emplace(*new_nodes_, outputs, call.take_node_watches());
  if (collector_) identity_ = !collector_->after_call(outputs, chain_.backward_of(call));
  if (watched) watched->finish();
}

}  // namespace op_tools
