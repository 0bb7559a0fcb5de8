// The exact gradients of a torch-level call, without adding a node to the graph.
//
// A composite call makes several autograd nodes. All of them have a sequence number at or above the
// number peeked before the call; every edge from that subgraph into an input's gradient edge delivers
// a part of the input's gradient from this call, and their sum is that gradient. Output gradients
// are the gradients that arrive at the outputs' nodes. The hooks only read, so gradients and accumulation order
// stay the same.
//
// Autocast casts a weight once and keeps the cast, so that a later call's subgraph ends at an older
// cast node, and the first call's cast node receives every call's gradients. So a cast of an input
// that is a leaf counts as the input: the gradient that enters the cast node from this call is the part, and it
// is cast back.
//
// A pass with create_graph makes nodes that lead to the middle of the call (linear's own transposed weight), and a
// later pass may enter there: a gradient that then arrives at an input is not that of the call's outputs. So in passes
// after such a pass, gradients that do not come straight from an output's node are left out.
//
// An input given twice gets the same gradient at both positions. Under compiled autograd the hooks
// do not run: nothing is reported. In-place change of a view: gradients that reach its base by
// other ways than the output are in the inputs' gradients but in no output's.
//
// Ownership: the nodes own the hooks, the hooks share the call; a graph that is freed without
// running backward frees everything. Gradients are copied as they pass, or borrowed: then they are the engine's own
// memory, which still holds the values that the nodes have read when they are reported, and is released right after.
// before_call() and after_call() run on the thread of the call, outside InternalGuard; backward may run on any thread,
// and on several at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/export.h"

namespace torch::autograd {
struct Node;
}

namespace op_tools {

struct CallGradients {
  std::vector<at::Tensor> outputs;  // by output tensor; undefined where no gradient arrived
  std::vector<at::Tensor> inputs;   // by input tensor; undefined where the call gives it none
  uint32_t pass = 0;                // 0 for the first backward pass over the call, 1 for the next
  // false: the pass left out the gradients of some inputs (autograd.grad of others), or other gradients may have
  // reached them as well (above); theirs are undefined. A defined gradient is the whole gradient of this pass in either
  // case.
  bool complete = true;
  // By input tensor, of a pass that makes a graph (create_graph=True): the gradient has a gradient function. Empty: the
  // pass makes none.
  std::vector<bool> in_graph = {};
};

// True for the nodes that torch generates (derivatives.yaml): they do not write into the gradients that they receive,
// because others read them as well. A node of the program's own may write into them while it runs.
OP_TOOLS_API bool preserves_gradients(const torch::autograd::Node& node);

class OP_TOOLS_API GradientCollector {
 public:
  // Called on the thread that ran the call's last node of a pass (or at the end of its graph task), with private copies
  // detached from the graph, or borrowed gradients. Called once per backward pass that reaches the call and ends
  // without an error. May throw StopProgram only.
  struct OnBackward {
    template <std::invocable<const CallGradients&> Done>
    OnBackward(Done done, std::function<std::shared_ptr<void>()> begins = nullptr)  // NOLINT: a function is enough
        : done(std::move(done)), begins(std::move(begins)) {}
    std::function<void(const CallGradients&)> done;
    // May be empty. A pass ended in an error while a node of the call ran; the gradients are those that had arrived.
    // Called when the engine frees the pass, in a destructor: it must not run operators, nor throw.
    std::function<void(CallGradients)> failed;
    // May be empty. Called before the first node of a pass runs; its result stays alive until `done` returned. May
    // throw StopProgram only.
    std::function<std::shared_ptr<void>()> begins;
    // Gradients need not be copied: `done` reads them before it returns, or keeps them beside their versions.
    bool borrows = false;
  };

  // Before the call: remembers where the inputs' gradients go. nullptr when there is nothing to
  // collect (grad mode off, no input requires grad, an input is no plain tensor: a subclass or a
  // functorch wrapper): nothing is allocated then.
  static std::unique_ptr<GradientCollector> before_call(const std::vector<at::Tensor>& inputs);

  // After the call, once: hooks the nodes that the call made. Returns false when the call made no
  // node that leads to an output (identity: dropout with p=0, contiguous of a contiguous tensor).
  bool after_call(const std::vector<at::Tensor>& outputs, OnBackward on_backward);

  ~GradientCollector();

 private:
  struct Inputs;
  class Subgraph;
  explicit GradientCollector(std::unique_ptr<Inputs> inputs);
  std::unique_ptr<Inputs> inputs_;
};

}  // namespace op_tools
