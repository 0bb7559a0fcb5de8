#include "record/recording.h"

#include <algorithm>

namespace op_tools {

Recording before_step(const Recording& run, int64_t step) {
  Recording earlier = run;
  std::vector<uint32_t> number_now(run.calls.size(), kNoCall);
  earlier.calls.clear();
  for (uint32_t number = 0; number < run.calls.size(); ++number) {
    if (run.calls[number].step >= step) continue;
    number_now[number] = static_cast<uint32_t>(earlier.calls.size());
    earlier.calls.push_back(run.calls[number]);
  }
  earlier.rows.clear();
  earlier.prints.clear();
  earlier.blocks.clear();
  uint32_t values = 0;  // those after the last that a call has are of later calls
  for (const RecordedCall& call : earlier.calls) {
    for (const RecordedUse& use : earlier.inputs(call)) values = std::max(values, use.value + 1);
    for (const RecordedUse& use : earlier.outputs(call)) values = std::max(values, use.value + 1);
  }
  earlier.values.resize(values);
  for (RecordedValue& value : earlier.values) {
    if (value.producer == kNoCall) continue;
    value.producer = number_now[value.producer];
    if (value.producer == kNoCall) value = RecordedValue{};
  }
  return earlier;
}

}  // namespace op_tools
