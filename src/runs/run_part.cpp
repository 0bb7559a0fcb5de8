#include "runs/run_part.h"

#include <vector>

#include "hooks/op_traits.h"
#include "runs/call_keys.h"

namespace op_tools {

Recording steps_of(const Recording& run, int64_t first, int64_t end) {
  Recording part;
  part.path = run.path;
  part.header = run.header;
  part.complete = run.complete;
  part.damage = run.damage;
  part.strings = run.strings;
  part.lists = run.lists;
  std::vector<uint32_t> call_of(run.calls.size(), kNoCall), value_of(run.values.size(), kNoCall);  // in the part
  std::vector<uint32_t> values;                                                                    // of the run
  for (uint32_t number = 0; number < run.calls.size(); ++number) {
    RecordedCall call = run.calls[number];
    if (call.step < first || call.step >= end) continue;
    call_of[number] = static_cast<uint32_t>(part.calls.size());
    const uint32_t first_use = call.first_use;
    call.first_use = static_cast<uint32_t>(part.uses.size());
    for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
      RecordedUse use = run.uses[first_use + i];
      uint32_t& value = value_of[use.value];
      if (value == kNoCall) {
        value = static_cast<uint32_t>(values.size());
        values.push_back(use.value);
      }
      use.value = value;
      part.uses.push_back(use);
    }
    part.calls.push_back(call);
  }
  part.values.reserve(values.size());
  const std::vector<bool> unwritten = unwritten_values(run);
  for (const uint32_t number : values) {
    RecordedValue value = run.values[number];
    const bool is_older = value.producer != kNoCall && call_of[value.producer] == kNoCall;
    if (value.producer != kNoCall) value.producer = call_of[value.producer];
    if (is_older && value.origin == Origin::kCall) value.origin = Origin::kUnknown;
    if (is_older && unwritten[number]) {
      value.known = false;
      value.hash = 0;
    }
    part.values.push_back(value);
  }
  return part;
}

std::map<int64_t, size_t> calls_by_step(const Recording& run) {
  std::map<int64_t, size_t> counts;
  for (const RecordedCall& call : run.calls) ++counts[call.step];
  return counts;
}

std::string first_collective(const Recording& run, int64_t step) {
  for (const RecordedCall& call : run.calls) {
    if (call.step >= step && is_collective(run.string(call.op))) return std::string(run.string(call.op));
  }
  return "";
}

}  // namespace op_tools
