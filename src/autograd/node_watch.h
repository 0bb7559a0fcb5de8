// The autograd nodes that a torch-level call made, watched while backward runs them. No node is added and no gradient
// copied. Used by torch-level sources for hooks that asked for it (OpCall::watch_nodes); nodes of the same call may run
// on several threads, and in several passes, at once. Under compiled autograd nothing is reported.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/export.h"

namespace torch::autograd {
struct Node;
}

namespace op_tools {

// Owned by the graph of the call: freed with it, whether or not backward ever runs. An exception is logged, once for
// each call; the program goes on.
class OP_TOOLS_API NodeWatch {
 public:
  virtual ~NodeWatch() = default;
  // Around each node of the call, on the thread that runs it. `task` identifies the backward pass. For a node that
  // raised node_ended() is not called.
  virtual void node_starts(int task) = 0;
  virtual void node_ended(int task) = 0;
  // A backward pass in which nodes of the call ran has ended without an error.
  virtual void pass_ended(int task) = 0;
};

// Distinguishes the nodes that a call makes from older ones: made before the call, asked after it, on the same thread.
class OP_TOOLS_API NewNodes {
 public:
  NewNodes();
  bool contain(const torch::autograd::Node& node) const;

 private:
  uint64_t first_sequence_;
  uint64_t thread_;  // sequence numbers count per thread
};

// Attaches watches to the nodes that lead to the outputs of a call, after it. In two parts: hooks that others attach
// between the constructor and finish() run outside of the watched interval.
class OP_TOOLS_API WatchedNodes {
 public:
  WatchedNodes(const NewNodes& new_nodes, const std::vector<at::Tensor>& outputs,
               std::vector<std::shared_ptr<NodeWatch>> watches);
  void finish();

 private:
  std::vector<torch::autograd::Node*> nodes_;  // the outputs hold them
  std::shared_ptr<class Watched> watched_;
};

}  // namespace op_tools
