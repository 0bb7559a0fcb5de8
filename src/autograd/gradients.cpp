#include "autograd/gradients.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "autograd/gradient_passes.h"
#include "tensor/dispatch_keys.h"
#include "tensor/plain_tensor.h"
#include "tensor/small_map.h"

namespace op_tools {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Routes = GradientRoutes;

Borrow borrow_at(const Node& node) {
  return preserves_gradients(node) ? Borrow::kAlways : Borrow::kNever;
}

// The state of a hook on an autograd node: the call, which of the node's gradients concern it, and the function of
// GradientPasses that takes them. Compiled autograd asks hooks to describe themselves (compiled_args) and leaves out
// those that do not.
template <class Report>
struct NodeObserver {
  std::shared_ptr<GradientPasses> call;
  Routes routes;
  Report report;
};

// Reports that a node which receives gradients of the call's outputs, or of their bases, is about to run.
class ArrivalHook : public torch::autograd::FunctionPreHook {
 public:
  using Report = void (GradientPasses::*)(const Routes&, const variable_list&, Borrow);
  ArrivalHook(NodeObserver<Report> observer, const Node& node)
      : observer_(std::move(observer)), borrow_(borrow_at(node)) {}

  variable_list operator()(const variable_list& gradients) override {
    (observer_.call.get()->*observer_.report)(observer_.routes, gradients, borrow_);
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const NodeObserver<Report> observer_;
  const Borrow borrow_;
};

// Reports the gradient that a node of the call gives to an input, or to one of the call's outputs.
class PartHook : public torch::autograd::FunctionPostHook {
 public:
  using Report = void (GradientPasses::*)(const Routes&, const variable_list&);
  explicit PartHook(NodeObserver<Report> observer) : observer_(std::move(observer)) {}

  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    (observer_.call.get()->*observer_.report)(observer_.routes, gradients);
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const NodeObserver<Report> observer_;
};

// Around a node of the call.
class NodeStarts : public torch::autograd::FunctionPreHook {
 public:
  explicit NodeStarts(std::shared_ptr<GradientPasses> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& gradients) override {
    call_->node_starts();
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::shared_ptr<GradientPasses> call_;
};

class NodeEnded : public torch::autograd::FunctionPostHook {
 public:
  explicit NodeEnded(std::shared_ptr<GradientPasses> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    call_->node_ended();
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::shared_ptr<GradientPasses> call_;
};

bool is_accumulator(const Node& node) {
  return node.sequence_nr() == std::numeric_limits<uint64_t>::max();
}

bool is_plain(const at::Tensor& tensor) {
  return !tensor.key_set().has_any(kWrapperTensorKeys);
}

// The base of an output that is a view of something that has a gradient, in a form in which the place can be found.
std::optional<at::Tensor> base_of(const at::Tensor& output) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(output);
  if (!view || !view->has_bw_view()) return std::nullopt;
  const at::Tensor base = view->get_backward_view().base_;
  if (!base.requires_grad() || base.is_leaf() || base.is_inference() || base.layout() != at::kStrided ||
      !base.is_non_overlapping_and_dense() || base.dtype() != output.dtype() || base.is_conj() != output.is_conj() ||
      base.is_neg() != output.is_neg()) {
    return std::nullopt;
  }
  return base;
}

// The numbers of a complex tensor, written in place (view_as_real): its gradients are the base's, in another form.
bool is_written_in_another_dtype(const at::Tensor& output) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(output);
  if (!view || !view->has_bw_view()) return false;
  const at::Tensor base = view->get_backward_view().base_;
  return base.dtype() != output.dtype() && base.requires_grad() && !base.is_leaf() &&
         dynamic_cast<const torch::autograd::CopySlices*>(torch::autograd::impl::gradient_edge(base).function.get());
}

// An input that is a view, and the edge of its base.
struct ViewOfBase {
  size_t input;
  Edge base;
  at::TensorGeometry shown;
};

// The edges that end the walk, found by edge.
class Targets {
 public:
  Targets(c10::ArrayRef<Edge> edges, c10::ArrayRef<at::TensorOptions> options, std::vector<GradientTarget>& targets)
      : options_(options), targets_(targets) {
    targets_.reserve(edges.size());
    for (size_t i = 0; i < edges.size(); ++i) {
      if (!edges[i].is_valid()) continue;
      const auto [target, fresh] = by_edge_.entry(edges[i]);
      if (fresh) *target = targets_.size();
      if (*target == targets_.size()) targets_.push_back({edges[i].function.get(), {}, std::nullopt});
      targets_[*target].inputs.push_back(i);
    }
  }

  // An in-place call on a view makes a node in the base's graph (CopySlices), in whose gradient for the base the part
  // that the view shows is the view's gradient. The view's own edge is gone.
  void find_views(const Node& node, const std::vector<ViewOfBase>& views, Routes& routes) {
    const auto* slices = dynamic_cast<const torch::autograd::CopySlices*>(&node);
    if (!slices) return;
    for (const ViewOfBase& view : views) {
      if (view.base != node.next_edge(0) || view.shown.sizes() != slices->view.sizes() ||
          view.shown.strides() != slices->view.strides() ||
          view.shown.storage_offset() != slices->view.storage_offset()) {
        continue;
      }
      auto within = std::make_unique<at::TensorGeometry>(view.shown);
      within->mutable_storage_offset() = view.shown.storage_offset() - slices->base.storage_offset();
      routes.emplace_back(0, targets_.size());
      targets_.push_back(
          {view.base.function.get(), {view.input}, std::nullopt, std::move(within), slices->base.strides().vec()});
    }
  }

  std::optional<size_t> find(const Edge& edge) {
    if (const size_t* const known = by_edge_.find(edge)) return *known;
    const Node& node = *edge.function;
    if (node.num_outputs() != 1 || !node.next_edge(0).is_valid() || !is_accumulator(*node.next_edge(0).function)) {
      return std::nullopt;
    }
    const size_t* const leaf = by_edge_.find(node.next_edge(0));
    if (!leaf || node.name() != "ToCopyBackward0") return std::nullopt;
    targets_.push_back({&node, targets_[*leaf].inputs, options_[targets_[*leaf].inputs.front()]});
    return *by_edge_.entry(edge).first = targets_.size() - 1;
  }

 private:
  const c10::ArrayRef<at::TensorOptions> options_;
  std::vector<GradientTarget>& targets_;
  SmallMap<size_t, Edge> by_edge_;
};

}  // namespace

// By the C++ name, so that a node of Python's or of an extension is never taken for a node of torch's.
bool preserves_gradients(const torch::autograd::Node& node) {
  constexpr std::string_view kGenerated = "N5torch8autograd9generated";
  return std::string_view(typeid(node).name()).starts_with(kGenerated);
}

struct GradientCollector::Inputs {
  c10::SmallVector<Edge, 4> edges;                 // by input; invalid where no gradient goes
  c10::SmallVector<at::TensorOptions, 4> options;  // by input
  std::vector<ViewOfBase> views;
  uint64_t first_sequence = 0;
  uint64_t thread = 0;  // sequence numbers count per thread

  bool is_new(const Node& node) const {
    return !is_accumulator(node) && node.sequence_nr() >= first_sequence && node.thread_id() == thread;
  }
};

// The part of the autograd graph that the call made, and where its hooks go.
class GradientCollector::Subgraph {
 public:
  Subgraph(const Inputs& inputs, std::shared_ptr<GradientPasses> call)
      : inputs_(inputs), call_(std::move(call)), targets_(inputs.edges, inputs.options, call_->targets()) {}

  // False: the output's gradients cannot be recorded.
  bool add_output(size_t index, const at::Tensor& output);
  bool empty() const { return nodes_.empty(); }
  // Walks from the outputs' nodes to the inputs and attaches all hooks.
  void attach_hooks();

 private:
  void add_base(size_t index, const at::Tensor& output);
  void attach_part_hooks(Node* node);

  const Inputs& inputs_;
  const std::shared_ptr<GradientPasses> call_;
  Targets targets_;
  c10::SmallVector<Node*, 8> nodes_;  // those that lead to outputs, in the order of the walk
  SmallMap<bool, Node*> seen_;
  SmallMap<Routes, Node*> output_routes_, base_routes_;
};

bool GradientCollector::Subgraph::add_output(size_t index, const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad() || output.is_leaf()) return true;
  const Edge edge = torch::autograd::impl::gradient_edge(output);
  if (!inputs_.is_new(*edge.function)) return true;
  if (is_written_in_another_dtype(output)) return false;
  output_routes_.entry(edge.function.get()).first->emplace_back(edge.input_nr, index);
  if (seen_.entry(edge.function.get()).second) nodes_.push_back(edge.function.get());
  add_base(index, output);
  return true;
}

void GradientCollector::Subgraph::add_base(size_t index, const at::Tensor& output) {
  const std::optional<at::Tensor> base = base_of(output);
  if (!base) return;
  const Edge edge = torch::autograd::impl::gradient_edge(*base);
  if (!inputs_.is_new(*edge.function)) return;
  at::TensorGeometry within(output);
  within.mutable_storage_offset() = output.storage_offset() - base->storage_offset();
  base_routes_.entry(edge.function.get()).first->emplace_back(edge.input_nr, call_->output_views().size());
  const bool base_was_written = dynamic_cast<torch::autograd::CopySlices*>(edge.function.get()) != nullptr;
  call_->output_views().push_back({index, at::TensorGeometry(*base), std::move(within), base_was_written,
                                   torch::autograd::impl::version_counter(*base)});
}

void GradientCollector::Subgraph::attach_part_hooks(Node* node) {
  if (call_->follows_nodes()) node->add_post_hook(std::make_unique<NodeEnded>(call_));
  Routes routes, inner;  // to inputs; to outputs of the call
  for (uint32_t j = 0; j < node->num_outputs(); ++j) {
    const Edge& edge = node->next_edge(j);
    if (!edge.is_valid()) continue;
    if (const auto target = targets_.find(edge)) {
      routes.emplace_back(j, *target);
      continue;
    }
    if (const Routes* const outputs = output_routes_.find(edge.function.get())) {
      for (const auto& [position, output] : *outputs) {
        if (position == edge.input_nr) inner.emplace_back(j, output);
      }
    }
    if (inputs_.is_new(*edge.function) && seen_.entry(edge.function.get()).second) {
      nodes_.push_back(edge.function.get());
    }
  }
  if (!inputs_.views.empty()) targets_.find_views(*node, inputs_.views, routes);
  const auto attach = [&](Routes& from, PartHook::Report report) {
    call_->count_node();
    node->add_post_hook(std::make_unique<PartHook>(NodeObserver<PartHook::Report>{call_, std::move(from), report}));
  };
  if (!inner.empty()) attach(inner, &GradientPasses::inner_node_ran);
  if (routes.empty()) return;
  const Routes* const arrivals = output_routes_.find(node);
  if (!arrivals || arrivals->size() < node->num_inputs()) {  // group_norm's node receives those of mean and rstd, too
    for (const auto& route : routes) call_->targets()[route.second].inside = true;
  }
  attach(routes, &GradientPasses::part_node_ran);
}

void GradientCollector::Subgraph::attach_hooks() {
  for (size_t i = 0; i < nodes_.size(); ++i) attach_part_hooks(nodes_[i]);
  const auto attach = [&](SmallMap<Routes, Node*>& by_node, ArrivalHook::Report report) {
    for (auto& [node, routes] : by_node) {
      call_->count_node();
      node->add_pre_hook(
          std::make_unique<ArrivalHook>(NodeObserver<ArrivalHook::Report>{call_, std::move(routes), report}, *node));
    }
  };
  attach(output_routes_, &GradientPasses::output_node_runs);
  attach(base_routes_, &GradientPasses::base_node_runs);
  if (!call_->follows_nodes()) return;
  for (Node* const node : nodes_) node->add_pre_hook(std::make_unique<NodeStarts>(call_));
}

GradientCollector::GradientCollector(std::unique_ptr<Inputs> inputs) : inputs_(std::move(inputs)) {}
GradientCollector::~GradientCollector() = default;

std::unique_ptr<GradientCollector> GradientCollector::before_call(const std::vector<at::Tensor>& inputs) {
  if (!c10::GradMode::is_enabled()) return nullptr;
  const auto requires_grad = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const auto wrapped = [](const at::Tensor& t) { return t.defined() && !is_plain(t); };
  if (std::none_of(inputs.begin(), inputs.end(), requires_grad) || std::any_of(inputs.begin(), inputs.end(), wrapped)) {
    return nullptr;
  }
  auto known = std::make_unique<Inputs>();
  known->edges.resize(inputs.size());
  known->options.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!requires_grad(inputs[i])) continue;
    known->edges[i] = torch::autograd::impl::gradient_edge(inputs[i]);
    known->options[i] = at::TensorOptions(inputs[i].device()).dtype(inputs[i].dtype());
    const auto* view = torch::autograd::impl::get_view_autograd_meta(inputs[i]);
    if (view && view->has_bw_view() && view->get_backward_view().base_.requires_grad() &&
        view->get_backward_view().base_.dtype() == inputs[i].dtype()) {
      known->views.push_back(
          {i, torch::autograd::impl::gradient_edge(view->get_backward_view().base_), at::TensorGeometry(inputs[i])});
    }
  }
  // After the edges: that of a view whose base was changed in place makes its node only now.
  known->first_sequence = at::sequence_number::peek();
  known->thread = at::RecordFunction::currentThreadId();
  return std::unique_ptr<GradientCollector>(new GradientCollector(std::move(known)));
}

bool GradientCollector::after_call(const std::vector<at::Tensor>& outputs, OnBackward on_backward) {
  // The edges are freed when this returns: an accumulator that nothing else holds must not stay.
  const std::unique_ptr<Inputs> known = std::move(inputs_);
  Subgraph subgraph(*known,
                    std::make_shared<GradientPasses>(outputs.size(), known->edges.size(), std::move(on_backward)));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!subgraph.add_output(i, outputs[i])) return true;  // the call made nodes; nothing is recorded of them
  }
  if (subgraph.empty()) return false;
  subgraph.attach_hooks();
  return true;
}

}  // namespace op_tools
