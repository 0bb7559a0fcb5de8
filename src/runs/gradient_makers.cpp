#include "runs/gradient_makers.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "runs/call_keys.h"

namespace op_tools {
namespace {

bool is_telling(const RecordedValue& value) {
  return value.hash != 0 && value.known && value.min != value.max;
}

// By number of A's call: that at which it is judged.
std::vector<uint32_t> last_of_groups(const Alignment& alignment, size_t calls) {
  std::vector<uint32_t> last(calls);
  for (uint32_t call = 0; call < calls; ++call) {
    const uint32_t group = alignment.group_of_a[call];
    last[call] = group == kNoCall ? call : alignment.groups[group].a.back();
  }
  return last;
}

}  // namespace

std::vector<uint32_t> sources_of(const Recording& run) {
  std::vector<uint32_t> sources = moved_from(run);
  std::unordered_map<uint64_t, uint32_t> makers;  // by hash
  for (const RecordedCall& call : run.calls) {
    if (call.phase != Phase::kBackward) continue;
    for (const RecordedUse& use : run.outputs(call)) {
      if (is_telling(run.values[use.value])) makers.emplace(run.values[use.value].hash, use.value);
    }
  }
  for (const RecordedCall& call : run.calls) {
    if (call.phase != Phase::kBackward) continue;
    for (const RecordedUse& use : run.inputs(call)) {
      const RecordedValue& value = run.values[use.value];
      if (value.origin != Origin::kUnknown || !is_telling(value)) continue;
      const auto maker = makers.find(value.hash);
      const bool is_same = maker != makers.end() && run.values[maker->second].producer < run.calls.size() &&
                           run.calls[run.values[maker->second].producer].step == call.step &&
                           run.list(run.values[maker->second].shape) == run.list(value.shape);
      if (is_same) sources[use.value] = maker->second;
    }
  }
  return sources;
}

std::vector<bool> read_in_backward(const Recording& run, const std::vector<uint32_t>& sources) {
  std::vector<bool> is_read(run.values.size(), false);
  for (const RecordedCall& call : run.calls) {
    if (call.phase != Phase::kBackward) continue;
    for (const RecordedUse& use : run.inputs(call)) is_read[sources[use.value]] = true;
  }
  return is_read;
}

std::vector<uint32_t> behind_makers(const Recording& run, const std::vector<uint32_t>& sources,
                                    const Alignment& alignment, const std::vector<uint32_t>& order) {
  const std::vector<uint32_t> judged_at = last_of_groups(alignment, run.calls.size());
  std::vector<uint32_t> position(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  std::vector<uint32_t> place(position);  // the position behind which the call stands
  uint32_t latest = 0;                    // of the backward calls so far
  for (const uint32_t call : order) {
    const bool is_backward = run.calls[call].phase == Phase::kBackward;
    place[call] = std::max(place[call], place[judged_at[call]]);
    for (const RecordedUse& use : run.inputs(run.calls[call])) {
      const RecordedValue& value = run.values[sources[use.value]];
      if (value.origin == Origin::kCall && value.producer < place.size()) {
        const uint32_t maker = judged_at[value.producer];
        if (maker != judged_at[call]) place[call] = std::max({place[call], place[value.producer], place[maker]});
      } else if (is_backward && value.origin == Origin::kUnknown) {
        place[call] = std::max(place[call], latest);
      }
    }
    if (is_backward) latest = std::max(latest, place[call]);
  }
  std::vector<uint32_t> sorted(order);
  std::stable_sort(sorted.begin(), sorted.end(), [&](uint32_t call, uint32_t other) {
    return std::tuple(place[call], place[call] != position[call]) <
           std::tuple(place[other], place[other] != position[other]);
  });
  return sorted;
}

}  // namespace op_tools
