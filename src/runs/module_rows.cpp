#include "runs/module_rows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "hooks/module_path.h"

namespace op_tools {

ModuleRows::ModuleRows(const Recording& run) : run_(run) {
  std::unordered_map<uint32_t, std::vector<uint32_t>>
      ended;  // by thread: calls that none around them was found for yet
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    if (call.phase != Phase::kForward || !is_module_call(run.string(call.op))) continue;
    if (around_.empty()) around_.assign(run.calls.size(), kNoCall);
    forward_.emplace(call.id, i);
    std::vector<uint32_t>& before = ended[call.thread];
    for (; !before.empty() && run.calls[before.back()].id > call.id; before.pop_back()) around_[before.back()] = i;
    before.push_back(i);
  }
  put_in_order();
}

void ModuleRows::put_in_order() {
  const auto count = static_cast<uint32_t>(run_.calls.size());
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0);
  if (around_.empty()) return;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> backward;  // the row, by forward id and pass
  for (uint32_t i = 0; i < count; ++i) {
    const RecordedCall& call = run_.calls[i];
    if (call.phase == Phase::kBackward) backward.emplace(std::pair(call.forward_id, call.pass), i);
  }
  std::vector<uint32_t> place(order_);  // the last row inside
  for (uint32_t i = 0; i < count; ++i) {
    const RecordedCall& call = run_.calls[i];
    if (call.phase != Phase::kBackward) continue;
    for (uint32_t outer = around(i); outer != kNoCall; outer = around_[outer]) {
      const auto row = backward.find({run_.calls[outer].id, call.pass});
      if (row != backward.end()) place[row->second] = std::max(place[row->second], i);
    }
  }
  std::stable_sort(order_.begin(), order_.end(), [&](uint32_t call, uint32_t other) {
    if (place[call] != place[other]) return place[call] < place[other];
    return run_.calls[call].id > run_.calls[other].id;  // the inner call began later
  });
}

uint32_t ModuleRows::around(uint32_t call) const {
  if (around_.empty()) return kNoCall;
  if (run_.calls[call].phase == Phase::kForward) return around_[call];
  const auto forward = forward_.find(run_.calls[call].forward_id);
  return forward == forward_.end() ? kNoCall : around_[forward->second];
}

const ModuleRows::Inside* ModuleRows::inside(uint32_t call) const {
  if (around_.empty()) return nullptr;
  const RecordedCall& recorded = run_.calls[call];
  const auto forward = forward_.find(recorded.phase == Phase::kForward ? recorded.id : recorded.forward_id);
  if (forward == forward_.end()) return nullptr;
  const auto entry = inside_.find(key(forward->second, recorded.phase));
  return entry == inside_.end() ? nullptr : &entry->second;
}

void ModuleRows::judged(uint32_t call, double difference, uint32_t row) {
  const uint32_t outer = around(call);
  if (outer == kNoCall) return;
  Inside& inside = inside_[key(outer, run_.calls[call].phase)];
  if (std::isfinite(difference)) inside.difference = std::max(inside.difference, difference);
  if (inside.carried == kNoCall) inside.carried = row;
}

}  // namespace op_tools
