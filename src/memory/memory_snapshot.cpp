// The rows of OpMemoryCheck's result, as MemoryTable has them.
#include <algorithm>
#include <utility>

#include "memory/memory_table.h"

namespace op_tools {

MemoryTable::BlocksOfPlaces MemoryTable::blocks_of_places_locked() const {
  BlocksOfPlaces blocks(places_.size());
  for (const auto& block : blocks_) {
    if (!block.second.call) blocks[block.second.place].push_back(&block);
  }
  return blocks;
}

BlockAges MemoryTable::ages_of(const std::vector<const Blocks::value_type*>& blocks) {
  std::vector<uint32_t> births;
  BlockAges ages;
  for (const auto* block : blocks) {
    births.push_back(block->second.step);
    ages.remade_steps = std::max<int64_t>(ages.remade_steps, block->second.remade_steps);
  }
  std::sort(births.begin(), births.end());
  ages.birth_steps = std::unique(births.begin(), births.end()) - births.begin();
  return ages;
}

MemoryRow MemoryTable::row_locked(const PlaceFigures& figures) const {
  MemoryRow row;
  const DeviceState& device = devices_[figures.device];
  row.device = device.device.str();
  row.op = figures.place.op;
  row.phase = to_string(figures.place.phase);
  row.module = text_of(figures.place.module);
  row.line = text_of(figures.place.line);
  row.kind = figures.parameter                                ? "parameter"
             : figures.place.phase == MemoryPhase::kOptimizer ? "optimizer"
             : figures.place.grad_enabled                     ? "activation"  // also those that backward computes again
             : figures.place.phase == MemoryPhase::kBackward  ? "gradient"
                                                              : "other";
  row.alive = figures.account.blocks;
  row.alive_bytes = figures.account.bytes;
  row.peak_bytes = figures.account.at(device.peak);
  row.allocations = figures.allocations;
  row.allocated_bytes = figures.allocated_bytes;
  row.first_step = figures.first_step;
  row.last_step = figures.last_step;
  row.freed_by = figures.freed_by;
  row.stack = figures.place.stack;
  return row;
}

MemoryTable::Snapshot MemoryTable::snapshot(bool cpu) {
  Snapshot all;
  const std::lock_guard lock(mutex_);
  sweep_locked();
  cpu = cpu || std::all_of(devices_.begin(), devices_.end(), [](const auto& state) { return state.device.is_cpu(); });
  const auto is_wanted = [&](uint8_t device) { return cpu || !devices_[device].device.is_cpu(); };
  const BlocksOfPlaces blocks = blocks_of_places_locked();
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < places_.size(); ++i) {
    if (is_wanted(places_[i].device)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t left, uint32_t right) {
    return places_[left].account.bytes > places_[right].account.bytes;
  });
  for (const uint32_t number : order) {
    for (const auto* block : blocks[number]) {
      if (all.blocks.size() >= kMostBlocks) break;
      all.blocks.push_back({static_cast<int64_t>(all.rows.size()), reinterpret_cast<int64_t>(block->first),
                            static_cast<int64_t>(block->second.bytes), block->second.step,
                            devices_[block->second.device].device.str()});
    }
    const PlaceFigures& figures = places_[number];
    const BlockAges ages = ages_of(blocks[number]);
    const LeakVerdict verdict = judge_leak(figures.history, places_.sample_interval(), ages, figures.now());
    MemoryRow row = row_locked(figures);
    row.birth_steps = ages.steps();
    row.leaks = verdict.leaks;
    row.growth = verdict.growth;
    row.step_distance = places_.sample_interval();
    for (const PlaceSample& sample : figures.history.samples) row.bytes_at_steps.push_back(sample.bytes);
    all.rows.push_back(std::move(row));
  }
  for (const DeviceState& state : devices_) {
    if (!cpu && state.device.is_cpu()) continue;
    all.devices.push_back({state.device.str(), state.bytes, state.peak_bytes, state.peak_step, state.peak_op,
                           state.reports, state.told_bytes, state.told_peak_bytes, state.reserved_bytes,
                           state.reserved_peak_bytes, state.unused_bytes});
  }
  all.overwrites = overwrites_;
  all.steps = step_;
  return all;
}

}  // namespace op_tools
