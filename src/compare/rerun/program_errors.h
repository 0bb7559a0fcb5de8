// Errors of the program's own that come to light while a tool waits for the device: they are the program's, and end its
// call as they would have ended a moment later. In the program's threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/op_call.h"
#include "tensor/tensor_bits.h"

namespace op_tools {

// A call's tensors are about to be read, which waits for their devices. Throws StopProgram with the error that a device
// then reports. `tool`: whose message it is. `when`: "before", "after".
OP_TOOLS_API void wait_for_program(std::string_view tool, const std::vector<at::Tensor>& tensors, std::string_view when,
                                   const OpCall& call);

// Of a forward call, for its backward: what autograd may read there, as it was after the call.
struct OP_TOOLS_API WatchedForBackward : HookState {
  explicit WatchedForBackward(std::string_view tool) : tool(tool) {}
  std::shared_ptr<void> hold_during_backward() const override;
  // An input or result was changed past autograd since.
  bool is_changed() const;

  const std::string_view tool;  // a constant's
  std::vector<TensorFingerprint> fingerprints;
};

}  // namespace op_tools
