#include "autograd/node_watch.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"

namespace op_tools {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

}  // namespace

// The state that the hooks of a call's nodes share.
class Watched : public std::enable_shared_from_this<Watched> {
 public:
  explicit Watched(std::vector<std::shared_ptr<NodeWatch>> watches) : watches_(std::move(watches)) {}

  void starts() noexcept {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task < 0) return;  // the node was called by hand, outside the engine
    guarded([&] {
      if (is_new(task)) {
        torch::autograd::Engine::get_default_engine().queue_callback(
            [self = shared_from_this(), task] { self->pass_ended(task); });
      }
      for (const auto& watch : watches_) watch->node_starts(task);
    });
  }

  // In reverse order of starts().
  void ended() noexcept {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task < 0) return;
    guarded([&] {
      for (size_t i = watches_.size(); i-- > 0;) watches_[i]->node_ended(task);
    });
  }

 private:
  void pass_ended(int task) noexcept {
    guarded([&] {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        tasks_.erase(std::remove(tasks_.begin(), tasks_.end(), task), tasks_.end());
      }
      for (const auto& watch : watches_) watch->pass_ended(task);
    });
  }

  bool is_new(int task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(tasks_.begin(), tasks_.end(), task) != tasks_.end()) return false;
    tasks_.push_back(task);
    return true;
  }

  template <class Call>
  void guarded(Call&& call) noexcept {
    try {
      const InternalGuard guard;
      call();
    } catch (const std::exception& error) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!std::exchange(failed_, true))
        log::error(std::string("backward of a call is not followed: ") + exception_text(error));
    }
  }

  const std::vector<std::shared_ptr<NodeWatch>> watches_;
  std::mutex mutex_;
  std::vector<int> tasks_;  // passes that are on their way; a pass that fails stays
  bool failed_ = false;
};

namespace {

class StartHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit StartHook(std::shared_ptr<Watched> watched) : watched_(std::move(watched)) {}
  variable_list operator()(const variable_list& gradients) override {
    watched_->starts();
    return gradients;
  }
  // Compiled autograd asks hooks to describe themselves; a hook that does not is left out.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  std::shared_ptr<Watched> watched_;
};

class EndHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit EndHook(std::shared_ptr<Watched> watched) : watched_(std::move(watched)) {}
  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    watched_->ended();
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  std::shared_ptr<Watched> watched_;
};

}  // namespace

NewNodes::NewNodes() : first_sequence_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

bool NewNodes::contain(const Node& node) const {
  constexpr uint64_t kAccumulator = std::numeric_limits<uint64_t>::max();
  return node.sequence_nr() != kAccumulator && node.sequence_nr() >= first_sequence_ && node.thread_id() == thread_;
}

WatchedNodes::WatchedNodes(const NewNodes& new_nodes, const std::vector<at::Tensor>& outputs,
                           std::vector<std::shared_ptr<NodeWatch>> watches) {
  if (watches.empty()) return;
  std::unordered_set<Node*> seen;
  const auto visit = [&](Node* node) {
    if (node && new_nodes.contain(*node) && seen.insert(node).second) nodes_.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad() && !output.is_leaf()) {
      visit(torch::autograd::impl::gradient_edge(output).function.get());
    }
  }
  if (nodes_.empty()) return;
  watched_ = std::make_shared<Watched>(std::move(watches));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (uint32_t j = 0; j < nodes_[i]->num_outputs(); ++j) visit(nodes_[i]->next_edge(j).function.get());
    nodes_[i]->add_post_hook(std::make_unique<EndHook>(watched_));
  }
}

void WatchedNodes::finish() {
  for (Node* node : nodes_) node->add_pre_hook(std::make_unique<StartHook>(watched_));
}

}  // namespace op_tools
