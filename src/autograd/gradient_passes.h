// Collects the gradients of a torch-level call, pass by pass, and reports each pass when it is complete. The hooks
// that gradients.cpp attaches to the call's graph share an object; threads of the engine call it, several at once.
#pragma once

#include <ATen/TensorGeometry.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>  // an Edge needs the whole Node

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/gradients.h"

namespace op_tools {

// An edge that leads out of the call's subgraph to an input.
struct GradientTarget {
  const torch::autograd::Node* node;
  c10::SmallVector<size_t, 2> inputs;        // an input that is given twice stands here twice
  std::optional<at::TensorOptions> cast_to;  // the edge leads to a cast of the input
  // The edge leads to the base of an input that is a view: where in the base's gradient the view's is.
  std::unique_ptr<at::TensorGeometry> view = nullptr;
  std::vector<int64_t> base_strides = {};
  // A part comes from a node that receives more than the outputs' gradients: a second-order pass may enter there (see
  // gradients.h on create_graph).
  bool inside = false;
};

// An output that is a view of a tensor which the call made or wrote. Its whole gradient is the part of the base's
// gradient at the view's place. The view's own edge is lost when it is written in place later, and misses values that
// the program reads through the base.
struct OutputView {
  size_t output;
  at::TensorGeometry base, within;
  bool base_was_written;          // by the call, in place: the program has the base, too
  c10::VariableVersion versions;  // of both
  uint32_t version = versions.current_version();

  bool needs_base() const { return base_was_written || versions.current_version() != version; }
};

// Position in a node's gradients -> index of an output or a target.
using GradientRoutes = c10::SmallVector<std::pair<size_t, size_t>, 2>;

// When a gradient may be borrowed instead of copied. A gradient that enters the call is read by the call's own nodes
// only until they ran: kAlways, except at a node that is not torch's and may write into it. A gradient that leaves the
// call belongs to the engine, which may accumulate into it: kLast, at the last node of a pass, which is reported at
// once.
enum class Borrow : uint8_t { kNever, kAlways, kLast };

class GradientPasses : public std::enable_shared_from_this<GradientPasses> {
 public:
  using Gradients = torch::autograd::variable_list;

  GradientPasses(size_t outputs, size_t inputs, GradientCollector::OnBackward on_backward)
      : outputs_(outputs), inputs_(inputs), on_backward_(std::move(on_backward)) {}

  // Filled while the hooks are attached, constant from then on. A route's second number is an index into these,
  // or of an output.
  std::vector<GradientTarget>& targets() { return targets_; }
  std::vector<OutputView>& output_views() { return output_views_; }
  void count_node() { ++nodes_; }

  // Throw StopProgram only (base/stop_program.h), which the engine passes to the caller of backward.
  void output_node_runs(const GradientRoutes& routes, const Gradients& gradients, Borrow borrow);
  void base_node_runs(const GradientRoutes& routes, const Gradients& gradients, Borrow borrow);
  void part_node_ran(const GradientRoutes& routes, const Gradients& gradients);
  // Around each node, where it has to be known which node raised (OnBackward::failed).
  bool follows_nodes() const { return static_cast<bool>(on_backward_.failed); }
  void node_starts();
  void node_ended() noexcept;
  // For nodes that lead to another output of the call: lstm_cell's cell state, from which its hidden state is computed.
  void inner_node_ran(const GradientRoutes& routes, const Gradients& gradients);

 private:
  struct Pass;

  void end(Pass& pass);            // the graph task has ended: no more gradients arrive
  void drop(Pass& pass) noexcept;  // it has ended in an error
  template <class Store>
  void node_ran(const GradientRoutes& routes, const Gradients& gradients, Borrow when, Store store);
  bool is_last(int task);  // the node is the only node of the pass that has not run
  Pass& pass_of(int task);
  // True when the pass was open. Its pointer to this stays until the pass has been reported or dropped.
  bool close(Pass& pass);
  void report(Pass& pass);

  const size_t outputs_;
  const size_t inputs_;
  const GradientCollector::OnBackward on_backward_;
  std::vector<GradientTarget> targets_;   // constant once the hooks stand
  std::vector<OutputView> output_views_;  // likewise
  size_t nodes_ = 0;                      // hooks that fire in a pass that covers the whole call; likewise

  std::mutex mutex_;  // guards the members below, and the passes in open_
  std::vector<Pass*> open_;
  uint32_t passes_ = 0;
  bool graph_made_ = false;  // some pass over the call had create_graph
};

}  // namespace op_tools
