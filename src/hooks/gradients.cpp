#include "hooks/gradients.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "hooks/copy_memory.h"
#include "hooks/internal_guard.h"
#include "hooks/log.h"
#include "hooks/plain_tensor.h"
#include "hooks/small_map.h"
#include "hooks/stop_program.h"

namespace op_tools {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// An edge that leads out of the call's subgraph to an input.
struct Target {
  const Node* node;
  c10::SmallVector<size_t, 2> inputs;        // an input that is given twice stands here twice
  std::optional<at::TensorOptions> cast_to;  // the edge leads to a cast of the input
  // The edge leads to the base of an input that is a view: where in the base's gradient the view's is.
  std::unique_ptr<at::TensorGeometry> view = nullptr;
  std::vector<int64_t> base_strides = {};
  // A part comes from a node at which not only outputs' gradients arrive: a second-order pass may enter there (header).
  bool inside = false;
};

// A gradient in vmap has no memory of its own to copy: with `is_grads_batched` whole passes are in it.
bool in_transform(const at::Tensor& gradient) {
  if (!gradient.defined() || !gradient.key_set().has_any(c10::functorch_transforms_ks)) return false;
  static std::once_flag told;
  std::call_once(told, [] { log::warn("gradients of backward passes inside vmap are not recorded"); });
  return true;
}

// What one node brings: position in the node's gradients -> index of an output or a target.
using Routes = c10::SmallVector<std::pair<size_t, size_t>, 2>;

// A private copy with the same strides, of the elements that the tensor shows and no more: an
// expanded dimension stays one. A reference to the engine's own tensor, instead, would keep it from
// accumulating in place.
at::Tensor copy(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_conj() || tensor.is_neg() ||
      tensor._is_zerotensor() || !tensor.has_storage() || tensor.is_non_overlapping_and_dense()) {
    return private_copy(tensor);
  }
  std::vector<int64_t> sizes = tensor.sizes().vec();
  int64_t span = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.strides()[i] == 0 && sizes[i] > 1) sizes[i] = 1;
    span += (sizes[i] - 1) * tensor.strides()[i];
  }
  const at::Tensor shown = tensor.as_strided(sizes, tensor.strides());
  // A narrow column of a large matrix becomes dense rather than large.
  constexpr int64_t kMostSlack = 4;
  if (shown.is_non_overlapping_and_dense() || span > kMostSlack * shown.numel()) {
    return private_copy(shown).expand(tensor.sizes());
  }
  const at::Tensor base = shown.new_empty({span});
  return base.as_strided(sizes, tensor.strides(), 0).copy_(shown).expand(tensor.sizes());
}

// A gradient for the time until it is reported. While this stands the engine sums up into new memory instead of it.
at::Tensor lent(const at::Tensor& tensor) {
  const bool plain =
      tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor._is_zerotensor() && tensor.has_storage();
  return plain ? same_memory(tensor) : copy(tensor);
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& part) {
  if (!sum.defined()) return part;
  return sum.is_sparse() && !part.is_sparse() ? part.add(sum) : sum.add(part);
}

// What the program brought to an output that the call's own nodes bring a part to.
at::Tensor without(const at::Tensor& whole, const at::Tensor& part) {
  if (!whole.defined() || !part.defined()) return whole;
  if (whole.layout() != at::kStrided) return whole.sub(part);
  if (whole.equal(part)) return {};
  // Where the call's own part is no number, nothing is known of the other, and the call is what made it so.
  return at::where(part.isfinite(), whole.sub(part), at::zeros({}, whole.options()));
}

// What arrived along a target's edge, as the input's own gradient.
at::Tensor as_of_input(const Target& target, at::Tensor sum) {
  if (target.cast_to) return sum.to(*target.cast_to);
  if (!target.view) return sum;
  if (sum.strides() != target.base_strides) return {};  // the copy was packed: the place is not to be found in it
  const at::TensorGeometry& view = *target.view;
  return copy(sum.as_strided(view.sizes(), view.strides(), view.storage_offset()));
}

// An output that is a view of a tensor which the call made or wrote. What arrives at its base, in the place that it
// shows, is its whole gradient. Its own edge is lost when it is written in place later, and is passed by where the
// program reads the base.
struct OutputView {
  size_t output;
  at::TensorGeometry base, within;
  bool base_was_written;          // by the call, in place: the program has the base, too
  c10::VariableVersion versions;  // of both
  uint32_t version = versions.current_version();

  bool needs_base() const { return base_was_written || versions.current_version() != version; }
};

at::Tensor as_of_output(const OutputView& view, const at::Tensor& gradient) {
  const at::Tensor whole = gradient.new_empty_strided(view.base.sizes(), view.base.strides());
  whole.copy_(gradient);
  return copy(whole.as_strided(view.within.sizes(), view.within.strides(), view.within.storage_offset()));
}

// Where gradients are lent. What comes in is read by the call's own nodes until they are through, and shown as they
// have read it: hooks of the program's that come after ours may write into it. So may a node that is not torch's, while
// it runs: there it is copied. What goes out is the engine's from then on, to be summed up in place: lent is what is
// reported at once.
enum class Lends : uint8_t { kNever, kAlways, kLast };

Lends lends_at(const Node& node) {
  return leaves_what_arrives(node) ? Lends::kAlways : Lends::kNever;
}

class Call;

// One backward pass (graph task) over one call. Owned by the callback that waits in the graph task:
// a pass that ends in an error is dropped with it.
struct Pass {
  ~Pass();
  void end_of_task();

  std::shared_ptr<Call> call;  // set while the pass is open
  int task = 0;
  size_t nodes_left = 0;
  std::vector<at::Tensor> outputs;  // by output
  std::vector<at::Tensor> inner;  // by output: the part that comes from the call's own nodes; empty while there is none
  std::vector<at::Tensor> sums;   // by target
  std::vector<bool> wanted;       // by target: the pass was asked for what lies behind it
  std::string failure;
  std::shared_ptr<void> held;  // OnBackward::begins
  bool in_transform = false;
  bool may_enter_inside = false;  // an earlier pass over the call made a graph (create_graph)
};

// What the hooks of one call share.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(size_t outputs, size_t inputs, GradientCollector::OnBackward on_backward)
      : outputs_(outputs), inputs_(inputs), on_backward_(std::move(on_backward)) {}

  std::vector<Target>& targets() { return targets_; }
  std::vector<OutputView>& output_views() { return output_views_; }
  void count_node() { ++nodes_; }

  // What is thrown is a hook's wish to stop the program (stop_program.h); the engine takes it to the caller of
  // backward.
  void output_node_runs(const Routes& routes, const variable_list& gradients, Lends lends) {
    node_ran(routes, gradients, lends,
             [](Pass& pass, size_t output, at::Tensor gradient) { pass.outputs[output] = std::move(gradient); });
  }

  void base_node_runs(const Routes& routes, const variable_list& gradients, Lends lends) {
    Routes needed;
    for (const auto& route : routes) {
      if (output_views_[route.second].needs_base()) needed.push_back(route);
    }
    node_ran(needed, gradients, lends, [this](Pass& pass, size_t index, const at::Tensor& gradient) {
      const OutputView& view = output_views_[index];
      pass.outputs[view.output] = as_of_output(view, gradient);
    });
  }

  void part_node_ran(const Routes& routes, const variable_list& gradients) {
    node_ran(routes, gradients, Lends::kLast, [](Pass& pass, size_t target, at::Tensor gradient) {
      pass.sums[target] = sum_of(pass.sums[target], gradient);
    });
  }

  // Nodes of the call that lead to one of its outputs: the cell state of lstm_cell, of which the other output is made.
  void inner_node_ran(const Routes& routes, const variable_list& gradients) {
    node_ran(routes, gradients, Lends::kLast, [this](Pass& pass, size_t output, at::Tensor gradient) {
      pass.inner.resize(outputs_);
      pass.inner[output] = sum_of(pass.inner[output], gradient);
    });
  }

  // The graph task is through: what did not arrive will not.
  void end(Pass& pass) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!close(pass)) return;
    }
    report(pass);
  }

  void drop(Pass& pass) {
    std::lock_guard<std::mutex> lock(mutex_);
    close(pass);
  }

 private:
  template <class Store>
  void node_ran(const Routes& routes, const variable_list& gradients, Lends when, Store store) {
    Pass* done = nullptr;
    try {
      const int task = torch::autograd::get_current_graph_task_id();
      if (task < 0) return;  // the node was called by hand, outside the engine
      c10::SmallVector<std::pair<size_t, at::Tensor>, 3> copies;
      std::string failure;
      const bool makes_graph = c10::GradMode::is_enabled();
      const bool batched = std::any_of(gradients.begin(), gradients.end(), in_transform);
      InternalGuard guard;
      const bool lends = on_backward_.lends && (when == Lends::kAlways || (when == Lends::kLast && is_last(task)));
      try {
        for (const auto& [position, index] : routes) {
          if (!batched && position < gradients.size() && gradients[position].defined()) {
            copies.emplace_back(index, lends ? lent(gradients[position]) : copy(gradients[position]));
          }
        }
      } catch (const std::exception& error) {
        failure = error.what();
      }
      std::lock_guard<std::mutex> lock(mutex_);
      Pass& pass = pass_of(task);
      if (makes_graph) graph_made_ = true;
      if (!failure.empty()) pass.failure = failure;
      if (batched) pass.in_transform = true;
      try {
        for (auto& [index, gradient] : copies) store(pass, index, std::move(gradient));
      } catch (const std::exception& error) {
        pass.failure = error.what();
      }
      if (--pass.nodes_left == 0 && close(pass)) done = &pass;  // the graph task still owns it
    } catch (const std::exception& error) {
      log::error(std::string("gradients of a call are not recorded: ") + error.what());
    }
    if (done) report(*done);
  }

  // The node is the only one of the pass that has not run.
  bool is_last(int task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pass_of(task).nodes_left == 1;
  }

  Pass& pass_of(int task) {
    for (Pass* pass : open_) {
      if (pass->task == task) return *pass;
    }
    auto pass = std::make_shared<Pass>();
    pass->task = task;
    pass->nodes_left = nodes_;
    pass->may_enter_inside = graph_made_;
    pass->outputs.resize(outputs_);
    pass->sums.resize(targets_.size());
    if (on_backward_.begins) pass->held = on_backward_.begins();
    // Nothing of the subgraph that leads to a target has run before its first hook: the nodes live.
    const auto* executed = torch::autograd::get_current_graph_task_exec_info();
    pass->wanted.reserve(targets_.size());
    for (const Target& target : targets_) {
      bool wanted = true;
      if (executed && !executed->empty()) {
        const auto info = executed->find(const_cast<Node*>(target.node));
        wanted = info != executed->end() && info->second.should_execute();
      }
      pass->wanted.push_back(wanted);
    }
    torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end_of_task(); });
    open_.push_back(pass.get());
    pass->call = shared_from_this();
    return *pass;
  }

  // True when the pass was open. Its Call pointer stays until the pass has been reported or
  // dropped.
  bool close(Pass& pass) {
    const auto found = std::find(open_.begin(), open_.end(), &pass);
    if (found == open_.end()) return false;
    open_.erase(found);
    return true;
  }

  void report(Pass& pass) {
    const std::shared_ptr<Call> keep = std::move(pass.call);
    const std::shared_ptr<void> held = std::move(pass.held);
    if (pass.in_transform) return;
    try {
      CallGradients gradients;
      if (!pass.failure.empty()) throw std::runtime_error(pass.failure);
      gradients.outputs = std::move(pass.outputs);
      gradients.inputs.resize(inputs_);
      c10::SmallVector<size_t, 2> mixed;
      {
        InternalGuard guard;
        for (size_t i = 0; i < pass.inner.size(); ++i) {
          gradients.outputs[i] = without(gradients.outputs[i], pass.inner[i]);
        }
        for (size_t i = 0; i < targets_.size(); ++i) {
          if (!pass.wanted[i]) gradients.complete = false;
          if (!pass.wanted[i] || !pass.sums[i].defined()) continue;
          if (pass.may_enter_inside && targets_[i].inside) {
            mixed.append(targets_[i].inputs.begin(), targets_[i].inputs.end());
            continue;
          }
          const at::Tensor part = as_of_input(targets_[i], std::move(pass.sums[i]));
          const at::Tensor sum = sum_of(gradients.inputs[targets_[i].inputs.front()], part);
          for (const size_t input : targets_[i].inputs) gradients.inputs[input] = sum;
        }
      }
      pass.sums.clear();
      for (const size_t input : mixed) gradients.inputs[input] = at::Tensor();
      if (!mixed.empty()) gradients.complete = false;
      const auto arrived = [](const at::Tensor& gradient) { return gradient.defined(); };
      if (!mixed.empty() && std::none_of(gradients.outputs.begin(), gradients.outputs.end(), arrived)) return;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        gradients.pass = passes_++;
      }
      on_backward_.done(gradients);
    } catch (const StopProgram& stop) {
      stop.raise();
    } catch (const std::exception& error) {
      log::error(std::string("gradients of a call are not recorded: ") + error.what());
    }
  }

  const size_t outputs_;
  const size_t inputs_;
  const GradientCollector::OnBackward on_backward_;
  std::vector<Target> targets_;           // constant once the hooks stand
  std::vector<OutputView> output_views_;  // likewise
  size_t nodes_ = 0;                      // hooks that fire in a pass that covers the whole call; likewise

  std::mutex mutex_;  // guards what follows, and the passes in open_
  std::vector<Pass*> open_;
  uint32_t passes_ = 0;
  bool graph_made_ = false;  // some pass over the call had create_graph
};

Pass::~Pass() {
  if (call) call->drop(*this);
}

void Pass::end_of_task() {
  // A copy: report() takes `call`, and may be the last to hold it.
  if (const std::shared_ptr<Call> open = call) open->end(*this);
}

// Tells the call that a node which brings gradients of its outputs, or of their bases, is about to run.
class ArrivalHook : public torch::autograd::FunctionPreHook {
 public:
  using Tell = void (Call::*)(const Routes&, const variable_list&, Lends);
  ArrivalHook(std::shared_ptr<Call> call, Routes routes, Tell tell, const Node& node)
      : call_(std::move(call)), routes_(std::move(routes)), tell_(tell), lends_(lends_at(node)) {}

  variable_list operator()(const variable_list& gradients) override {
    (call_.get()->*tell_)(routes_, gradients, lends_);
    return gradients;
  }
  // Compiled autograd asks hooks to describe themselves; one that does not is left out.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  std::shared_ptr<Call> call_;
  Routes routes_;
  Tell tell_;
  Lends lends_;
};

// Tells the call what a node of its own brings to an input, or to one of the call's outputs.
class PartHook : public torch::autograd::FunctionPostHook {
 public:
  using Tell = void (Call::*)(const Routes&, const variable_list&);
  PartHook(std::shared_ptr<Call> call, Routes routes, Tell tell)
      : call_(std::move(call)), routes_(std::move(routes)), tell_(tell) {}

  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    (call_.get()->*tell_)(routes_, gradients);
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  std::shared_ptr<Call> call_;
  Routes routes_;
  Tell tell_;
};

bool is_accumulator(const Node& node) {
  return node.sequence_nr() == std::numeric_limits<uint64_t>::max();
}

bool is_plain(const at::Tensor& tensor) {
  constexpr auto kWrappers =
      c10::python_ks | c10::functorch_transforms_ks |
      c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchDynamicLayerBackMode});
  return !tensor.key_set().has_any(kWrappers);
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
  Targets(c10::ArrayRef<Edge> edges, c10::ArrayRef<at::TensorOptions> options, std::vector<Target>& targets)
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
  std::vector<Target>& targets_;
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
  const auto call = std::make_shared<Call>(outputs.size(), known->edges.size(), std::move(on_backward));
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
      nodes[i]->add_post_hook(std::make_unique<PartHook>(call, std::move(inner), &Call::inner_node_ran));
    }
    if (routes.empty()) continue;
    const Routes* const arrivals = output_routes.find(nodes[i]);
    if (!arrivals || arrivals->size() < nodes[i]->num_inputs()) {  // group_norm's node has those of mean and rstd, too
      for (const auto& route : routes) call->targets()[route.second].inside = true;
    }
    call->count_node();
    nodes[i]->add_post_hook(std::make_unique<PartHook>(call, std::move(routes), &Call::part_node_ran));
  }
  for (auto& [node, routes] : output_routes) {
    call->count_node();
    node->add_pre_hook(std::make_unique<ArrivalHook>(call, std::move(routes), &Call::output_node_runs, *node));
  }
  for (auto& [node, routes] : base_routes) {
    call->count_node();
    node->add_pre_hook(std::make_unique<ArrivalHook>(call, std::move(routes), &Call::base_node_runs, *node));
  }
  return true;
}

}  // namespace op_tools
