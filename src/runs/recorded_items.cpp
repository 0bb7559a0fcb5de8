#include "runs/recorded_items.h"

#include <map>
#include <tuple>
#include <unordered_map>

#include "hooks/call_items.h"

namespace op_tools {

std::vector<uint64_t> recorded_items(const Recording& run) {
  std::vector<uint64_t> items(run.calls.size(), 0);
  std::map<std::tuple<int64_t, StringNumber, Phase>, int64_t> counts;
  std::unordered_map<uint64_t, uint64_t> forward;  // by id
  for (size_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    if (call.level == Level::kTorch && call.phase == Phase::kBackward) continue;
    items[i] = item_in_order(run.string(call.op), call.phase, counts[{call.step, call.op, call.phase}]++);
    forward.emplace(call.id, items[i]);
  }
  for (size_t i = 0; i < run.calls.size(); ++i) {
    if (items[i] != 0) continue;
    const auto entry = forward.find(run.calls[i].id);
    if (entry != forward.end()) items[i] = entry->second;
  }
  return items;
}

}  // namespace op_tools
