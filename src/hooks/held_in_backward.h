// For a HookState that a hook keeps for a call's backward (OpCall::keep): what has to stay as long as a backward pass
// over the call runs. Autograd lets go of what a node saved as soon as the node has run, which is before the hook sees
// the pass.
#pragma once

#include <memory>

namespace op_tools {

class HeldInBackward {
 public:
  virtual ~HeldInBackward() = default;
  // Asked when the first node of the call is about to run, by the engine's thread. Let go when the pass was reported.
  virtual std::shared_ptr<void> hold() const = 0;
};

}  // namespace op_tools
