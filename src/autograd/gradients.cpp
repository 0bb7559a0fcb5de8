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

Lends lends_at(const Node& node) {
  return leaves_what_arrives(node) ? Lends::kAlways : Lends::kNever;
}

// Tells the call that a node which brings gradients of its outputs, or of their bases, is about to run.
class ArrivalHook : public torch::autograd::FunctionPreHook {
 public:
  using Tell = void (GradientPasses::*)(const Routes&, const variable_list&, Lends);
  ArrivalHook(std::shared_ptr<GradientPasses> call, Routes routes, Tell tell, const Node& node)
      : call_(std::move(call)), routes_(std::move(routes)), tell_(tell), lends_(lends_at(node)) {}

  variable_list operator()(const variable_list& gradients) override {
    (call_.get()->*tell_)(routes_, gradients, lends_);
    return gradients;
  }
  // Compiled autograd asks hooks to describe themselves; one that does not is left out.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  std::shared_ptr<GradientPasses> call_;
  Routes routes_;
  Tell tell_;
  Lends lends_;
};

// Tells the call what a node of its own brings to an input, or to one of the call's outputs.
class PartHook : public torch::autograd::FunctionPostHook {
 public:
  using Tell = void (GradientPasses::*)(const Routes&, const variable_list&);
  PartHook(std::shared_ptr<GradientPasses> call, Routes routes, Tell tell)
      : call_(std::move(call)), routes_(std::move(routes)), tell_(tell) {}

  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    (call_.get()->*tell_)(routes_, gradients);
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  std::shared_ptr<GradientPasses> call_;
  Routes routes_;
  Tell tell_;
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

// By the C++ name, so that a node of Python's or of an extension is never taken for one of torch's.
bool leaves_what_arrives(const torch::autograd::Node& node) {
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
  // The edges go when this returns: an accumulator that nothing else holds must not stay.
  const std::unique_ptr<Inputs> known = std::move(inputs_);
  const auto call = std::make_shared<GradientPasses>(outputs.size(), known->edges.size(), std::move(on_backward));
  Targets targets(known->edges, known->options, call->targets());

  c10::SmallVector<Node*, 8> nodes;  // the subgraph that leads to outputs, in the order of the walk
  SmallMap<bool, Node*> seen;
  SmallMap<Routes, Node*> output_routes, base_routes;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || outputs[i].is_leaf()) continue;
    const Edge edge = torch::autograd::impl::gradient_edge(outputs[i]);
    if (!known->is_new(*edge.function)) continue;
    if (is_written_in_another_dtype(outputs[i])) return true;  // it made nodes; nothing is recorded of them
    output_routes.entry(edge.function.get()).first->emplace_back(edge.input_nr, i);
    if (seen.entry(edge.function.get()).second) nodes.push_back(edge.function.get());
    const std::optional<at::Tensor> base = base_of(outputs[i]);
    if (!base) continue;
    const Edge base_edge = torch::autograd::impl::gradient_edge(*base);
    if (!known->is_new(*base_edge.function)) continue;
    at::TensorGeometry within(outputs[i]);
    within.mutable_storage_offset() = outputs[i].storage_offset() - base->storage_offset();
    base_routes.entry(base_edge.function.get()).first->emplace_back(base_edge.input_nr, call->output_views().size());
    const bool base_was_written = dynamic_cast<torch::autograd::CopySlices*>(base_edge.function.get()) != nullptr;
    call->output_views().push_back({i, at::TensorGeometry(*base), std::move(within), base_was_written,
                                    torch::autograd::impl::version_counter(*base)});
  }
  if (nodes.empty()) return false;

  for (size_t i = 0; i < nodes.size(); ++i) {
    Routes routes, inner;
    for (uint32_t j = 0; j < nodes[i]->num_outputs(); ++j) {
      const Edge& edge = nodes[i]->next_edge(j);
      if (!edge.is_valid()) continue;
      if (const auto target = targets.find(edge)) {
        routes.emplace_back(j, *target);
        continue;
      }
      if (const Routes* const outputs_of = output_routes.find(edge.function.get())) {
        for (const auto& [position, output] : *outputs_of) {
          if (position == edge.input_nr) inner.emplace_back(j, output);
        }
      }
      if (known->is_new(*edge.function) && seen.entry(edge.function.get()).second) {
        nodes.push_back(edge.function.get());
      }
    }
    if (!known->views.empty()) targets.find_views(*nodes[i], known->views, routes);
    if (!inner.empty()) {
      call->count_node();
      nodes[i]->add_post_hook(std::make_unique<PartHook>(call, std::move(inner), &GradientPasses::inner_node_ran));
    }
    if (routes.empty()) continue;
    const Routes* const arrivals = output_routes.find(nodes[i]);
    if (!arrivals || arrivals->size() < nodes[i]->num_inputs()) {  // group_norm's node has those of mean and rstd, too
      for (const auto& route : routes) call->targets()[route.second].inside = true;
    }
    call->count_node();
    nodes[i]->add_post_hook(std::make_unique<PartHook>(call, std::move(routes), &GradientPasses::part_node_ran));
  }
  for (auto& [node, routes] : output_routes) {
    call->count_node();
    node->add_pre_hook(
        std::make_unique<ArrivalHook>(call, std::move(routes), &GradientPasses::output_node_runs, *node));
  }
  for (auto& [node, routes] : base_routes) {
    call->count_node();
    node->add_pre_hook(std::make_unique<ArrivalHook>(call, std::move(routes), &GradientPasses::base_node_runs, *node));
  }
  return true;
}

}  // namespace op_tools
