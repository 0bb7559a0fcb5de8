// An operator call, forward or backward, as the hooks of a chain see it (hook.h). Made by a source (dispatcher
// interceptor, torch-function interceptor, replay), passed to hooks by reference, invalid after the last after().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include "base/export.h"
#include "base/options.h"
#include "tensor/value.h"

namespace c10 {
class OperatorHandle;
}

namespace op_tools {

enum class Phase : uint8_t { kForward, kBackward };
constexpr const char* to_string(Phase phase) {
  return phase == Phase::kForward ? "forward" : "backward";
}

class ArgumentKey;  // argument_key.h
class HookState;    // hook.h
struct BackwardStates;
struct GuardedState;  // internal_guard.h
class OpCall;
class NodeWatch;  // node_watch.h

// The operator of a call, to be run again on other values: by any thread, as often as wanted, also after the call is
// over. Our interceptors do not see it; grad mode, autocast and excluded keys are those of the thread that runs it.
class OP_TOOLS_API OpRunner {
 public:
  virtual ~OpRunner() = default;
  // args: Tuple, kwargs: Dict with string keys, as Frame gives them. Throws the operator's exception (a Python
  // exception as std::runtime_error with its text), Error when a value has no form that the operator takes.
  virtual Value run(const Value& args, const Value& kwargs) const = 0;
};

// A source's view of its call in progress. A class per source; the methods that build values are asked at
// most once per call (OpCall keeps the answers) and only when a hook wants them.
class OP_TOOLS_API Frame {
 public:
  virtual ~Frame() = default;

  virtual Value args() = 0;    // Tuple. Backward: the output gradients, None where there is none
  virtual Value kwargs() = 0;  // Dict with string keys. Backward: empty
  virtual Value result() = 0;  // valid after proceed(): the call's results. Backward: Tuple of input gradients

  // Every tensor of the inputs (of the result), in the order of for_each_tensor, without building a Value: for hooks
  // that are asked millions of times.
  using Visit = c10::function_ref<void(const at::Tensor&)>;
  virtual void visit_inputs(Visit visit);
  virtual void visit_result(Visit visit);
  // The arguments (the result, after proceed()) as bytes, likewise. False: the source cannot give them so, or some part
  // has no such form; the Values have it.
  virtual bool add_arguments(ArgumentKey&) { return false; }
  virtual bool add_result(ArgumentKey&) { return false; }
  // A device that an argument names (torch.randn(3, device="cuda"), tensor.to(device)).
  virtual std::optional<c10::Device> named_device() { return std::nullopt; }

  // Around proceed(), and around the innermost hooks: other work for the hooks is done here, where no stopwatch sees
  // it. conclude() is left out when the operator raised.
  virtual void prepare(OpCall&) {}
  virtual void conclude(OpCall&) {}

  // Runs the operator itself (redispatch, the Python function). Exceptions are the user's and pass unchanged.
  virtual void proceed() = 0;

  // The aten call that was the whole of a torch-level call (Tuple of name, args by schema position), known after
  // proceed() when a hook wanted it; None otherwise.
  virtual Value aten_call() { return {}; }

  // After proceed(): an input requires grad, yet the call made no autograd node (it returned its input).
  virtual bool is_identity() { return false; }

  // nullptr where there is nothing to run again: a backward pass.
  virtual std::shared_ptr<const OpRunner> runner() { return nullptr; }
};

class OP_TOOLS_API OpCall {
 public:
  // `thread`: of the thread that makes the call; outlives it.
  OpCall(uint64_t id, Level level, Phase phase, std::string_view name, Frame& frame, const GuardedState& thread);
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  const uint64_t id;  // process-wide, rising; a backward call has the id of its forward call
  const Level level;
  const Phase phase;
  const std::string_view name;              // torch.nn.functional.linear | aten::add.Tensor
  const c10::OperatorHandle* op = nullptr;  // aten level only
  uint32_t pass = 0;         // backward: which backward pass over this call, from 0 (retain_graph=True makes several)
  bool incomplete = false;   // backward: the pass ended before every part of the gradients had come
  bool owns_values = false;  // backward: the gradients are private copies already, a hook may keep them
  // The program's own state, which hooks cannot read themselves: they run under a guard that changes it.
  const bool grad_enabled;
  const c10::impl::LocalDispatchKeySet local_keys;
  bool is_graph = false;  // a graph of torch.compile: run again, it is its operators that run
  std::string error;      // in after(): the operator's exception; empty when it returned
  int64_t step = 0;       // the training step, as the scope of the hook that is being called counts them

  // In before(): the hook takes no part in this call; no after(), no backward.
  void decline() { declined_ = true; }
  // The hooks that take part, as bits of the chain's mask: known to the frame from prepare() on.
  uint32_t hooks = 0;

  // Torch level, for a hook that wants gradients: a state that after() of the forward call saves is there in the
  // backward calls that belong to it. The autograd graph owns it: freed with the graph, whether or not backward runs.
  void save_for_backward(std::shared_ptr<HookState> state);
  HookState* saved_state() const;  // nullptr: nothing was saved

  // The module in whose forward() the program made the call, as in "ResNet.layer3.0.conv1" (module_path.h); of a
  // backward call that of its forward call. Empty: none, or not known. Found out when first asked, in before().
  const std::string& module() {
    if (!module_) find_place(/*line=*/false, /*module=*/true);
    return *module_;
  }
  // The user's line that made it, "file:line function", likewise.
  const std::string& line() {
    if (!line_) find_place(/*line=*/true, /*module=*/false);
    return *line_;
  }
  // All of the user's lines, innermost first (stack_source.h); of a backward call first that of its forward call, where
  // line() was asked there, then those that started the pass.
  std::vector<std::string> stack();
  // Finds line and module out, those that are asked for: both together cost little more than either.
  void find_place(bool line, bool module);

  // The thread works for the autograd engine: the call belongs to a backward pass, whatever its level.
  bool in_backward() const;

  // Backward: the call whose gradients it is part of; 0 in forward, or not known. Asked in before(), in forward too: at
  // the aten level it is known for the nodes of calls that were asked.
  uint64_t forward_id();

  // Torch level, for a hook that wants nodes, in after() of the forward call: follow its backward, node by node.
  void watch_nodes(std::shared_ptr<NodeWatch> watch) { node_watches_.push_back(std::move(watch)); }
  std::vector<std::shared_ptr<NodeWatch>> take_node_watches() { return std::move(node_watches_); }

  // Live values of the program: look, don't touch. Inputs of an in-place op change between before() and after().
  // At the aten level args() and kwargs() are there in after() only for a hook that wants inputs_after, or that read
  // them in before() (Error otherwise): the operator consumes them.
  const Value& args();
  const Value& kwargs();
  const Value& result();  // None when the operator raised
  Frame& frame() { return frame_; }

 private:
  friend class Chain;
  Frame& frame_;
  const GuardedState& thread_;
  bool declined_ = false;
  size_t hook_ = 0;  // which hook of the chain is being called
  std::shared_ptr<BackwardStates> backward_states_;
  std::vector<std::shared_ptr<NodeWatch>> node_watches_;
  std::optional<Value> args_, kwargs_, result_;
  void notes_nodes();
  const std::string *module_ = nullptr, *line_ = nullptr;  // live until the process ends; nullptr: not asked yet
  mutable std::optional<bool> in_backward_;                // asked once
  std::optional<uint64_t> first_node_;  // of those that the call makes; with module_, line_ or notes_id_
  bool notes_id_ = false;               // forward_id() was asked
};

// The name of a call that is a graph of torch.compile: "torch.compile.graph_0_1", by torch's own number of it.
constexpr std::string_view kGraphCalls = "torch.compile.";
inline bool is_graph_call(std::string_view name) {
  return name.substr(0, kGraphCalls.size()) == kGraphCalls;
}

// A process-wide number for a new call.
OP_TOOLS_API uint64_t next_call_id();

}  // namespace op_tools
