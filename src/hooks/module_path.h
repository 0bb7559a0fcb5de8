// In which module of the user's model a call is made: "ResNet.layer3.0.conv1", the class of the outermost module, then
// names. Only the program's language knows modules (base/host.h); it is asked when a hook asks the
// call (OpCall::module()), so that a program without such a hook pays nothing.
//
// In backward no module runs. The operators of an autograd node belong to the module of the call that made the node:
// calls that were asked for their module leave a note of the nodes that they made. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/export.h"
#include "base/host.h"
#include "base/op_filter.h"

namespace op_tools {

// Where this thread makes a call. In a backward pass the module is that of the stack, else that of the autograd node
// which this thread runs; the line is that of the call which made the node, else that of the stack. An unknown
// answer is empty.
Place current_place(bool line, bool module, bool in_backward);

// While a graph of torch.compile runs operator by operator in this thread, its frames are the graph's: the place of a
// call is that of the node which runs, as the compiler noted it. nullptr: no graph runs so. An empty part is asked of
// the stack. The strings live until the process ends.
OP_TOOLS_API void set_graph_node(const Place* place);

// The place in this thread's sequence of autograd nodes; asked before a call.
uint64_t next_node();
// The call that made a node. The strings live until the process ends; nullptr: no hook asked.
struct NodeOwner {
  const std::string *module = nullptr, *line = nullptr;
  uint64_t call = 0;  // its id; 0: no hook asked
};
// The nodes that this thread made since `first` are those of the operator `name`, owned by `owner`. The last 131,072
// ranges of a thread are stored.
void note_nodes(uint64_t first, std::string_view name, const NodeOwner& owner);

// Stands around a call that the interceptor lets pass and sees again inside: the local call of a DTensor's makes no
// node, the DTensor's own does. It belongs to the call inside that has the same operator, else to the last call.
class PassedCall {
 public:
  explicit PassedCall(std::string name);
  ~PassedCall();
  PassedCall(const PassedCall&) = delete;
  PassedCall& operator=(const PassedCall&) = delete;
  void noted_inside(std::string_view name, const NodeOwner& owner);

 private:
  const std::string name_;
  const uint64_t first_;
  PassedCall* const outer_;
  NodeOwner owner_;
  bool is_found_ = false;
};

// The call that made the node which this thread runs; 0: none, or not known.
uint64_t call_of_current_node();

// "ResNet.layer3.0.conv1" -> "layer3.0.conv1"; empty for the outermost module itself.
OP_TOOLS_API std::string_view without_model(std::string_view path);

// An item names the module or a module around it, with the model in front or without: conv1 in layer3 is admitted by
// `layer3`, `layer3.0.conv1`, `.*.conv1`, `ResNet`, `ResNet.layer3.*`.
OP_TOOLS_API bool admits_module(const OpFilter& filter, std::string_view path);

// Calls that a hook with Wants::modules sees have such names: "module:Linear", by the class; and, once in a training
// step, "loss:backward" and "optimizer:SGD".
OP_TOOLS_API bool is_module_call(std::string_view called);
OP_TOOLS_API bool is_optimizer_call(std::string_view called);

}  // namespace op_tools
