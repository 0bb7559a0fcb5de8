#pragma once

// A node of autograd's graph that torch frees without recursion, however long the graph is.
// Gap: nodes are intrusive since torch 2.13. Before they are shared, and freed by torch's own deleteNode(): by any
// other deleter each node frees the next, until the thread's stack ends. Any thread.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>

namespace torch::autograd {
void deleteNode(Node* node);
}

namespace op_tools::compat {

template <typename Pointer, typename Made, typename... Arguments>
Pointer make_node(const Arguments&... arguments) {
  if constexpr (std::is_constructible_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(std::shared_ptr<torch::autograd::Node>(new Made(arguments...), torch::autograd::deleteNode));
  } else {
    return c10::make_intrusive<Made>(arguments...);
  }
}

}  // namespace op_tools::compat
