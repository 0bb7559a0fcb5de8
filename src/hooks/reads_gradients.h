// For a Hook that wants gradients and is done with them when after() returns, or knows by their versions whether what
// it keeps is what it was. Where all hooks of a call are of this kind its gradients are not copied (gradients.h):
// OpCall::owns_values is false then.
#pragma once

namespace op_tools {

class ReadsGradients {
 public:
  virtual ~ReadsGradients() = default;
};

}  // namespace op_tools
