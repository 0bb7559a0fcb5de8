#include "autograd/gradient_passes.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "base/log.h"
#include "base/stop_program.h"
#include "tensor/copy_memory.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// A gradient inside vmap has no memory of its own to copy (with `is_grads_batched` whole passes are inside vmap), nor
// has a gradient of a subclass with its own dispatch, which InternalGuard bypasses.
bool has_no_memory(const at::Tensor& gradient) {
  if (!gradient.defined()) return false;
  const c10::DispatchKeySet keys = gradient.key_set();
  if (keys.has_any(c10::functorch_transforms_ks)) {
    static std::once_flag logged;
    std::call_once(logged, [] { log::warn("gradients of backward passes inside vmap are not recorded"); });
    return true;
  }
  if (!keys.has(c10::DispatchKey::Python) && !keys.has(c10::DispatchKey::Functionalize)) return false;
  static std::once_flag logged;
  std::call_once(logged,
                 [] { log::warn("gradients of tensor subclasses with a dispatch of their own are not recorded"); });
  return true;
}

// A private copy with the same strides, of the elements that the tensor shows and no more: an
// expanded dimension stays expanded. A reference to the engine's own tensor, instead, would keep it from
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

// A gradient until it is reported. While this reference exists the engine accumulates into new memory.
at::Tensor borrowed(const at::Tensor& tensor) {
  const bool plain =
      tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor._is_zerotensor() && tensor.has_storage();
  return plain ? same_memory(tensor) : copy(tensor);
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& part) {
  if (!sum.defined()) return part;
  return sum.is_sparse() && !part.is_sparse() ? part.add(sum) : sum.add(part);
}

// The part of an output's gradient that comes from the program, where the call's own nodes add a part, too.
at::Tensor without(const at::Tensor& whole, const at::Tensor& part) {
  if (!whole.defined() || !part.defined()) return whole;
  if (whole.layout() != at::kStrided) return whole.sub(part);
  if (whole.equal(part)) return {};
  // Where the call's own part is not finite, the program's part cannot be known, and the call is the cause.
  return at::where(part.isfinite(), whole.sub(part), at::zeros({}, whole.options()));
}

// The gradient that arrived along a target's edge, as the input's own gradient.
at::Tensor as_of_input(const GradientTarget& target, at::Tensor sum) {
  if (target.cast_to) return sum.to(*target.cast_to);
  if (!target.view) return sum;
  if (sum.strides() != target.base_strides) return {};  // the copy was packed: the place is not to be found in it
  const at::TensorGeometry& view = *target.view;
  return copy(sum.as_strided(view.sizes(), view.strides(), view.storage_offset()));
}

at::Tensor as_of_output(const OutputView& view, const at::Tensor& gradient) {
  const at::Tensor whole = gradient.new_empty_strided(view.base.sizes(), view.base.strides());
  whole.copy_(gradient);
  return copy(whole.as_strided(view.within.sizes(), view.within.strides(), view.within.storage_offset()));
}

}  // namespace

// A backward pass (graph task) over a call. Owned by the callback that waits in the graph task:
// a pass that ends in an error is dropped with it.
struct GradientPasses::Pass {
  ~Pass() {
    if (call) call->drop(*this);
  }
  void end_of_task() {
    // A copy: report() takes `call`, and may be the last to hold it.
    if (const std::shared_ptr<GradientPasses> open = call) open->end(*this);
  }

  std::shared_ptr<GradientPasses> call;  // set while the pass is open
  int task = 0;
  size_t nodes_left = 0;
  int nodes_running = 0;            // that started and have not ended: those of a node that raised never do
  std::vector<at::Tensor> outputs;  // by output
  std::vector<at::Tensor> inner;  // by output: the part that comes from the call's own nodes; empty while there is none
  std::vector<at::Tensor> sums;   // by target
  std::vector<bool> wanted;       // by target: the pass was asked for the gradients behind it
  std::vector<bool> in_graph;     // by target: a part of the gradient has a gradient function
  bool makes_graph = false;       // create_graph
  std::string failure;
  std::shared_ptr<void> held;  // OnBackward::begins
  bool unreadable = false;
  bool may_enter_inside = false;  // an earlier pass over the call made a graph (create_graph)
};

template <class Store>
void GradientPasses::node_ran(const GradientRoutes& routes, const Gradients& gradients, Borrow when, Store store) {
  Pass* done = nullptr;
  try {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task < 0) return;  // the node was called by hand, outside the engine
    c10::SmallVector<std::pair<size_t, at::Tensor>, 3> copies;
    std::string failure;
    const bool makes_graph = c10::GradMode::is_enabled();
    const bool unreadable = std::any_of(gradients.begin(), gradients.end(), has_no_memory);
    InternalGuard guard;
    const bool borrow = on_backward_.borrows && (when == Borrow::kAlways || (when == Borrow::kLast && is_last(task)));
    try {
      for (const auto& [position, index] : routes) {
        if (!unreadable && position < gradients.size() && gradients[position].defined()) {
          copies.emplace_back(index, borrow ? borrowed(gradients[position]) : copy(gradients[position]));
        }
      }
    } catch (const std::exception& error) {
      failure = exception_text(error);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    Pass& pass = pass_of(task);
    if (makes_graph) graph_made_ = pass.makes_graph = true;
    if (!failure.empty()) pass.failure = failure;
    if (unreadable) pass.unreadable = true;
    try {
      for (auto& [index, gradient] : copies) store(pass, index, std::move(gradient));
    } catch (const std::exception& error) {
      pass.failure = exception_text(error);
    }
    if (--pass.nodes_left == 0 && close(pass)) done = &pass;  // the graph task still owns it
  } catch (const StopProgram& stop) {
    stop.raise();
  } catch (const std::exception& error) {
    log::error(std::string("gradients of a call are not recorded: ") + exception_text(error));
  }
  if (done) report(*done);
}

void GradientPasses::output_node_runs(const GradientRoutes& routes, const Gradients& gradients, Borrow borrow) {
  node_ran(routes, gradients, borrow,
           [](Pass& pass, size_t output, at::Tensor gradient) { pass.outputs[output] = std::move(gradient); });
}

void GradientPasses::base_node_runs(const GradientRoutes& routes, const Gradients& gradients, Borrow borrow) {
  GradientRoutes needed;
  for (const auto& route : routes) {
    if (output_views_[route.second].needs_base()) needed.push_back(route);
  }
  node_ran(needed, gradients, borrow, [this](Pass& pass, size_t index, const at::Tensor& gradient) {
    const OutputView& view = output_views_[index];
    pass.outputs[view.output] = as_of_output(view, gradient);
  });
}

void GradientPasses::part_node_ran(const GradientRoutes& routes, const Gradients& gradients) {
  node_ran(routes, gradients, Borrow::kLast, [&](Pass& pass, size_t target, const at::Tensor& gradient) {
    pass.sums[target] = sum_of(pass.sums[target], gradient);
    const auto leads_there = [&](const auto& route) { return route.second == target; };
    const auto route = std::find_if(routes.begin(), routes.end(), leads_there);
    if (gradients[route->first].requires_grad()) pass.in_graph[target] = true;
  });
}

void GradientPasses::inner_node_ran(const GradientRoutes& routes, const Gradients& gradients) {
  node_ran(routes, gradients, Borrow::kLast, [this](Pass& pass, size_t output, const at::Tensor& gradient) {
    pass.inner.resize(outputs_);
    pass.inner[output] = sum_of(pass.inner[output], gradient);
  });
}

void GradientPasses::node_starts() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task < 0) return;
  try {
    const InternalGuard guard;
    std::lock_guard<std::mutex> lock(mutex_);
    ++pass_of(task).nodes_running;
  } catch (const StopProgram& stop) {
    stop.raise();
  } catch (const std::exception& error) {
    log::error(std::string("backward of a call is not followed: ") + exception_text(error));
  }
}

// Before the node's other hooks, of which the last reports the pass.
void GradientPasses::node_ended() noexcept {
  const int task = torch::autograd::get_current_graph_task_id();
  std::lock_guard<std::mutex> lock(mutex_);
  const auto open = std::find_if(open_.begin(), open_.end(), [task](const Pass* pass) { return pass->task == task; });
  if (open != open_.end()) --(*open)->nodes_running;
}

void GradientPasses::end(Pass& pass) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close(pass)) return;
  }
  report(pass);
}

void GradientPasses::drop(Pass& pass) noexcept {
  bool raised = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close(pass)) return;
    raised = pass.nodes_running > 0 && pass.failure.empty() && !pass.unreadable;
  }
  if (!raised || !on_backward_.failed) return;
  try {
    CallGradients gradients;
    gradients.outputs = std::move(pass.outputs);
    gradients.complete = false;
    on_backward_.failed(std::move(gradients));
  } catch (const std::exception&) {  // out of memory: the error of the pass reaches the program in any case
  }
}

bool GradientPasses::is_last(int task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pass_of(task).nodes_left == 1;
}

GradientPasses::Pass& GradientPasses::pass_of(int task) {
  for (Pass* pass : open_) {
    if (pass->task == task) return *pass;
  }
  auto pass = std::make_shared<Pass>();
  pass->task = task;
  pass->nodes_left = nodes_;
  pass->may_enter_inside = graph_made_;
  pass->outputs.resize(outputs_);
  pass->sums.resize(targets_.size());
  pass->in_graph.resize(targets_.size());
  if (on_backward_.begins) pass->held = on_backward_.begins();
  // Nothing of the subgraph that leads to a target has run before its first hook: the nodes live.
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();
  pass->wanted.reserve(targets_.size());
  for (const GradientTarget& target : targets_) {
    bool wanted = true;
    if (executed && !executed->empty()) {
      const auto info = executed->find(const_cast<torch::autograd::Node*>(target.node));
      wanted = info != executed->end() && info->second.should_execute();
    }
    pass->wanted.push_back(wanted);
  }
  torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end_of_task(); });
  open_.push_back(pass.get());
  pass->call = shared_from_this();
  return *pass;
}

bool GradientPasses::close(Pass& pass) {
  const auto entry = std::find(open_.begin(), open_.end(), &pass);
  if (entry == open_.end()) return false;
  open_.erase(entry);
  return true;
}

void GradientPasses::report(Pass& pass) {
  const std::shared_ptr<GradientPasses> keep = std::move(pass.call);
  const std::shared_ptr<void> held = std::move(pass.held);
  if (pass.unreadable) return;
  try {
    CallGradients gradients;
    if (!pass.failure.empty()) throw std::runtime_error(pass.failure);
    gradients.outputs = std::move(pass.outputs);
    gradients.inputs.resize(inputs_);
    if (pass.makes_graph) gradients.in_graph.resize(inputs_);
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
        for (const size_t input : targets_[i].inputs) {
          gradients.inputs[input] = sum;
          if (pass.in_graph[i] && pass.makes_graph) gradients.in_graph[input] = true;
        }
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
    log::error(std::string("gradients of a call are not recorded: ") + exception_text(error));
  }
}

}  // namespace op_tools
