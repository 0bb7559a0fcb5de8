#include "hooks/backward_pass.h"

#include <torch/csrc/autograd/graph_task.h>

namespace op_tools {

bool is_in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

Phase phase_of(const OpCall& call) {
  if (call.level == Level::kTorch) return call.phase;
  return call.in_backward() ? Phase::kBackward : Phase::kForward;
}

}  // namespace op_tools
