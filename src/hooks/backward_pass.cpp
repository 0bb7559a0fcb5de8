#include "hooks/backward_pass.h"

#include <torch/csrc/autograd/graph_task.h>

namespace op_tools {

Phase phase_of(const OpCall& call) {
  if (call.level == Level::kTorch) return call.phase;
  return torch::autograd::get_current_graph_task_id() >= 0 ? Phase::kBackward : Phase::kForward;
}

}  // namespace op_tools
