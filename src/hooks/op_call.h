// One operator call on its way through the chain (hook.h), forward or backward. Made by a source (dispatcher
// interceptor, torch-function interceptor, replay), handed to hooks by reference, dead after the last after().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "hooks/export.h"
#include "hooks/options.h"
#include "hooks/value.h"

namespace c10 {
class OperatorHandle;
}

namespace op_tools {

enum class Phase : uint8_t { kForward, kBackward };

// What a source knows about its call in progress. One class per source; the methods that build values are asked at
// most once per call (OpCall keeps the answers) and only when a hook wants them.
class OP_TOOLS_API Frame {
 public:
  virtual ~Frame() = default;

  virtual Value args() = 0;    // Tuple. Backward: the output gradients, None where there is none
  virtual Value kwargs() = 0;  // Dict with string keys. Backward: empty
  virtual Value result() = 0;  // valid after proceed(): what the call returned. Backward: Tuple of input gradients

  // Runs the operator itself (redispatch, the Python function). Exceptions are the user's and pass unchanged.
  virtual void proceed() = 0;

  // For executors: every input tensor (every tensor of the result) is replaced by replace(tensor), in the order of
  // for_each_tensor, before (after) proceed(). The user's own containers are left alone.
  virtual void replace_inputs(const std::function<at::Tensor(const at::Tensor&)>& replace) = 0;
  virtual void replace_result(const std::function<at::Tensor(const at::Tensor&)>& replace) = 0;

  // The aten call that was the whole of a torch-level call (Tuple of name, args by schema position), known after
  // proceed() when a hook wanted it; None otherwise.
  virtual Value aten_call() { return {}; }

  // After proceed(): an input requires grad, yet the call made no autograd node (it returned its input).
  virtual bool is_identity() { return false; }
};

class OP_TOOLS_API OpCall {
 public:
  OpCall(uint64_t id, Level level, Phase phase, std::string_view name, Frame& frame);
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  const uint64_t id;  // process-wide, rising; a backward call has the id of its forward call
  const Level level;
  const Phase phase;
  const std::string_view name;              // torch.nn.functional.linear | aten::add.Tensor
  const c10::OperatorHandle* op = nullptr;  // aten level only
  uint32_t pass = 0;  // backward: which backward pass over this call, from 0 (retain_graph=True makes more than one)
  bool incomplete = false;   // backward: the pass ended before every part of the gradients had come
  bool owns_values = false;  // backward: the gradients are private copies already, a hook may keep them
  // The program's own state, which hooks cannot read themselves: they run under a guard that changes it.
  const bool grad_enabled;
  const c10::impl::LocalDispatchKeySet local_keys;
  std::string error;  // in after(): what the operator raised; empty when it returned

  // In before(): the hook takes no part in this call; no after(), no backward.
  void decline() { declined_ = true; }
  // The hooks that take part, as bits of the chain's mask: known to the frame in proceed().
  uint32_t hooks = 0;

  // Live values of the program: look, don't touch. Inputs of an in-place op change between before() and after().
  const Value& args();
  const Value& kwargs();
  const Value& result();  // None when the operator raised
  Frame& frame() { return frame_; }

 private:
  friend class Chain;
  Frame& frame_;
  bool declined_ = false;
  std::optional<Value> args_, kwargs_, result_;
};

// A process-wide number for a new call.
OP_TOOLS_API uint64_t next_call_id();

}  // namespace op_tools
