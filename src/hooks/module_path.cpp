#include "hooks/module_path.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <deque>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace op_tools {
namespace {

ModuleSource& source() {
  static ModuleSource* source = new ModuleSource;  // leaked: asked until the process ends
  return *source;
}

// Ranges of autograd nodes, by the thread that made them and their numbers (torch counts per thread), with the
// module and the call of each. The oldest are forgotten: their graphs are gone.
class NodeOwners {
 public:
  static NodeOwners& get() {
    static NodeOwners* owners = new NodeOwners;  // leaked: threads may outlive static destruction
    return *owners;
  }

  void add(uint64_t thread, uint64_t first, uint64_t end, const std::string& module, uint64_t call) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string* const name = &*names_.insert(module).first;
    // Calls of one module follow each other: one range.
    auto before = ranges_.lower_bound({thread, first});
    if (before != ranges_.begin()) {
      --before;
      if (before->first.first == thread && before->second.end == first && before->second.module == name &&
          before->second.call == call) {
        before->second.end = end;
        return;
      }
    }
    const auto [added, is_new] = ranges_.insert_or_assign({thread, first}, NodeRange{end, name, call});
    if (!is_new) return;
    in_order_.push_back(added->first);
    if (in_order_.size() <= kMost) return;
    ranges_.erase(in_order_.front());
    in_order_.pop_front();
  }

  struct Owner {
    std::string module;
    uint64_t call = 0;
  };
  Owner find(const torch::autograd::Node& node) {
    const uint64_t thread = node.thread_id(), number = node.sequence_nr();
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound({thread, number});
    if (after == ranges_.begin()) return {};
    --after;
    if (after->first.first != thread || number >= after->second.end) return {};
    return {*after->second.module, after->second.call};
  }

 private:
  static constexpr size_t kMost = 1 << 17;
  using Key = std::pair<uint64_t, uint64_t>;  // thread, first node
  struct NodeRange {
    uint64_t end;
    const std::string* module;
    uint64_t call;
  };

  std::mutex mutex_;
  std::unordered_set<std::string> names_;  // as many as the program's models have modules
  std::map<Key, NodeRange> ranges_;
  std::deque<Key> in_order_;
};

}  // namespace

void set_module_source(ModuleSource new_source) {
  source() = std::move(new_source);
}

std::string current_module() {
  if (source()) {
    // Asked in backward as well: a checkpoint runs modules again there.
    if (std::string path = source()(); !path.empty()) return path;
  }
  const auto node = torch::autograd::get_current_node();
  return node ? NodeOwners::get().find(*node).module : std::string();
}

uint64_t call_of_current_node() {
  const auto node = torch::autograd::get_current_node();
  return node ? NodeOwners::get().find(*node).call : 0;
}

uint64_t next_node() {
  return at::sequence_number::peek();
}

void note_nodes(uint64_t first, const std::string& module, uint64_t call) {
  const uint64_t end = next_node();
  if (end > first) NodeOwners::get().add(at::RecordFunction::currentThreadId(), first, end, module, call);
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
