#include "hooks/module_path.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/fork_guard.h"
#include "base/looked_up.h"

namespace op_tools {
namespace {

const std::string kNone;

thread_local PassedCall* passed_call = nullptr;  // the innermost call of this thread

// Ranges of autograd nodes, by the thread that made them and their numbers (torch counts per thread), with the
// owner of each. The oldest are forgotten: their graphs are gone.
class NodeOwners {
 public:
  static NodeOwners& get() {
    static NodeOwners* owners = [] {
      keep_free_in_children([]() -> std::mutex& { return get().mutex_; });
      return new NodeOwners;  // leaked: threads may outlive static destruction
    }();
    return *owners;
  }

  void add(uint64_t thread, uint64_t first, uint64_t end, NodeOwner owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::deque<NodeRange>& ranges = ranges_of(thread);
    // A call within a call was noted before the call around it.
    const auto place = ranges.empty() || ranges.back().first < first
                           ? ranges.end()
                           : std::lower_bound(ranges.begin(), ranges.end(), first,
                                              [](const NodeRange& range, uint64_t node) { return range.first < node; });
    if (place != ranges.end() && place->first == first) {
      *place = {first, end, owner};
      return;
    }
    ranges.insert(place, {first, end, owner});
    if (ranges.size() > kMost) ranges.pop_front();
  }

  // The answer of find() is right while this stays equal.
  uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

  NodeOwner find(uint64_t thread, uint64_t node) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = threads_.find(thread);
    if (entry == threads_.end()) return {};
    const std::deque<NodeRange>& ranges = entry->second.ranges;
    auto after = std::upper_bound(ranges.begin(), ranges.end(), node,
                                  [](uint64_t number, const NodeRange& range) { return number < range.first; });
    if (after == ranges.begin()) return {};
    --after;
    return node < after->end ? after->owner : NodeOwner();
  }

 private:
  static constexpr size_t kMost = 1 << 17, kMostThreads = 256;
  struct NodeRange {
    uint64_t first, end;
    NodeOwner owner;
  };

  struct Thread {
    std::deque<NodeRange> ranges;
    uint64_t used = 0;  // when it last made nodes
  };

  std::deque<NodeRange>& ranges_of(uint64_t thread) {
    const auto [place, is_new] = threads_.try_emplace(thread);
    place->second.used = ++uses_;
    if (is_new && threads_.size() > kMostThreads) {
      threads_.erase(std::min_element(threads_.begin(), threads_.end(), [](const auto& entry, const auto& other) {
        return entry.second.used < other.second.used;
      }));
    }
    return place->second.ranges;
  }

  std::atomic<uint64_t> changes_{1};  // written under the mutex
  std::mutex mutex_;                  // guards the rest
  uint64_t uses_ = 0;
  std::unordered_map<uint64_t, Thread> threads_;
};

// The node that this thread asked for last: a node calls several operators, and hooks ask each for module and line.
struct LastNode {
  uint64_t thread, node, changes;
  NodeOwner owner;
};
thread_local LastNode last_node = {};

struct GraphNode {
  const Place* place;  // nullptr: no graph runs by its nodes
  int pass;            // the backward pass in which it began; -1: outside of passes
};
thread_local GraphNode graph_node = {nullptr, -1};

// A node that began in the backward pass which this thread runs is part of a checkpoint or of a function with a
// backward of its own: the autograd node around it is that which needs its results.
const Place* running_graph_node(bool in_autograd_node) {
  if (!in_autograd_node || !graph_node.place) return graph_node.place;
  const int pass = torch::autograd::get_current_graph_task_id();
  return graph_node.pass == pass ? graph_node.place : nullptr;
}

// Of the node that this thread runs; nothing where it runs none.
std::optional<NodeOwner> owner_of_node() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return std::nullopt;
  const uint64_t thread = node->thread_id(), number = node->sequence_nr();
  NodeOwners& owners = NodeOwners::get();
  const uint64_t changes = owners.changes();
  LastNode& last = looked_up_once(last_node);
  if (last.node != number || last.thread != thread || last.changes != changes) {
    last = {thread, number, changes, owners.find(thread, number)};
  }
  return last.owner;
}

}  // namespace

void set_graph_node(const Place* place) {
  graph_node = {place, place ? torch::autograd::get_current_graph_task_id() : -1};
}

Place current_place(bool line, bool module, bool in_backward) {
  const auto owner = in_backward ? owner_of_node() : std::nullopt;
  const Place* const running = running_graph_node(owner.has_value());
  const Place node = running ? *running : Place();
  // The module in backward as well: a checkpoint runs modules again there.
  Place place = host().place(line && !owner && !node.line, module && !node.module);
  if (node.line) place.line = node.line;
  if (node.module) place.module = node.module;
  if (owner) {
    if (line && !node.line) place.line = owner->line;
    if (module && !place.module) place.module = owner->module;
  }
  if (line && !place.line) place.line = &kNone;
  if (module && !place.module) place.module = &kNone;
  return place;
}

uint64_t call_of_current_node() {
  return owner_of_node().value_or(NodeOwner()).call;
}

uint64_t next_node() {
  return at::sequence_number::peek();
}

namespace {
// The nodes that this thread made since `first`.
void add_nodes(uint64_t first, const NodeOwner& owner) {
  const uint64_t end = next_node();
  if (end > first) NodeOwners::get().add(at::RecordFunction::currentThreadId(), first, end, owner);
}
}  // namespace

void note_nodes(uint64_t first, std::string_view name, const NodeOwner& owner) {
  if (passed_call) passed_call->noted_inside(name, owner);
  add_nodes(first, owner);
}

PassedCall::PassedCall(std::string name) : name_(std::move(name)), first_(next_node()), outer_(passed_call) {
  passed_call = this;
}

PassedCall::~PassedCall() {
  passed_call = outer_;
  if (!owner_.module && !owner_.line && owner_.call == 0) return;
  try {
    add_nodes(first_, owner_);
  } catch (const std::exception&) {  // no memory: a backward call without its line
  }
}

void PassedCall::noted_inside(std::string_view name, const NodeOwner& owner) {
  if (is_found_) return;
  owner_ = owner;
  is_found_ = name == name_;
}

std::string_view without_model(std::string_view path) {
  const size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
}

bool is_module_call(std::string_view called) {
  return called.starts_with("module:") || called.starts_with("loss:") || is_optimizer_call(called);
}

bool is_optimizer_call(std::string_view called) {
  return called.starts_with("optimizer:");
}

bool admits_module(const OpFilter& filter, std::string_view path) {
  bool admitted = false;
  const auto ask = [&](std::string_view name) {
    filter.saw(name);
    admitted = admitted || filter.names(name);
  };
  for (std::string_view around = path; !around.empty();) {
    ask(around);
    if (const std::string_view names = without_model(around); !names.empty()) ask(names);
    const size_t dot = around.rfind('.');
    around = dot == std::string_view::npos ? std::string_view() : around.substr(0, dot);
  }
  return admitted;
}

}  // namespace op_tools
