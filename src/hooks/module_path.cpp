#include "hooks/module_path.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "hooks/stack_source.h"

namespace op_tools {
namespace {

ModuleSource& source() {
  static ModuleSource* source = new ModuleSource;  // leaked: asked until the process ends
  return *source;
}

// Where a call is made.
using Place = std::pair<std::string, std::string>;  // module, line

// The call that made a node.
struct Owner {
  Place place;
  uint64_t call = 0;
};

// Ranges of autograd nodes, by the thread that made them and their numbers (torch counts per thread), with the
// owner of each. The oldest are forgotten: their graphs are gone.
class NodeOwners {
 public:
  static NodeOwners& get() {
    static NodeOwners* owners = new NodeOwners;  // leaked: threads may outlive static destruction
    return *owners;
  }

  void add(uint64_t thread, uint64_t first, uint64_t end, Owner owner) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Place* const name = &*places_.insert(std::move(owner.place)).first;
    // Calls of one module follow each other: one range.
    auto before = ranges_.lower_bound({thread, first});
    if (before != ranges_.begin()) {
      --before;
      const NodeRange& range = before->second;
      if (before->first.first == thread && range.end == first && range.place == name && range.call == owner.call) {
        before->second.end = end;
        return;
      }
    }
    const auto [added, is_new] = ranges_.insert_or_assign({thread, first}, NodeRange{end, name, owner.call});
    if (!is_new) return;
    in_order_.push_back(added->first);
    if (in_order_.size() <= kMost) return;
    ranges_.erase(in_order_.front());
    in_order_.pop_front();
  }

  Owner find(uint64_t thread, uint64_t node) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound({thread, node});
    if (after == ranges_.begin()) return {};
    --after;
    if (after->first.first != thread || node >= after->second.end) return {};
    return {*after->second.place, after->second.call};
  }

 private:
  static constexpr size_t kMost = 1 << 17;
  using Key = std::pair<uint64_t, uint64_t>;  // thread, first node
  struct NodeRange {
    uint64_t end;
    const Place* place;
    uint64_t call;
  };

  std::mutex mutex_;
  std::set<Place> places_;  // as many as the program has modules and lines
  std::map<Key, NodeRange> ranges_;
  std::deque<Key> in_order_;
};

// Of the node that this thread runs; nothing where it runs none.
std::optional<Owner> owner_of_node() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return std::nullopt;
  return NodeOwners::get().find(node->thread_id(), node->sequence_nr());
}

}  // namespace

void set_module_source(ModuleSource new_source) {
  source() = std::move(new_source);
}

std::string current_module() {
  if (source()) {
    // Asked in backward as well: a checkpoint runs modules again there.
    if (std::string path = source()(); !path.empty()) return path;
  }
  return owner_of_node().value_or(Owner()).place.first;
}

std::string current_line() {
  if (const auto owner = owner_of_node()) return owner->place.second;
  const StackLines lines = current_lines(1);
  return lines.empty() ? std::string() : *lines.front();
}

uint64_t call_of_current_node() {
  return owner_of_node().value_or(Owner()).call;
}

uint64_t next_node() {
  return at::sequence_number::peek();
}

void note_nodes(uint64_t first, const std::string& module, const std::string& line, uint64_t call) {
  const uint64_t end = next_node();
  if (end > first) NodeOwners::get().add(at::RecordFunction::currentThreadId(), first, end, {{module, line}, call});
}

std::string_view without_model(std::string_view path) {
  const size_t dot = path.find('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
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
