#include "runs/noise.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "runs/value_difference.h"

namespace op_tools {

using Kind = ValueDifference::Kind;

Noise noise_of(const Recording& a, const Recording& other, const Alignment& alignment) {
  Noise noise;
  noise.of_value.assign(a.values.size(), std::numeric_limits<double>::quiet_NaN());
  for (uint32_t i = 0; i < a.calls.size(); ++i) {
    const uint32_t partner = alignment.b_of_a[i];
    if (partner == kNoCall) continue;
    const RecordedCall &call = a.calls[i], &call_of_other = other.calls[partner];
    if (call.inputs != call_of_other.inputs || call.outputs != call_of_other.outputs) continue;
    for (uint32_t use = 0; use < call.inputs + call.outputs; ++use) {
      const uint32_t value = a.uses[call.first_use + use].value;
      const ValueDifference difference =
          difference_of(a, value, other, other.uses[call_of_other.first_use + use].value);
      if (difference.kind == Kind::kSame) noise.of_value[value] = 0;
      if (difference.kind == Kind::kNumbers) noise.of_value[value] = difference.relative;
    }
  }
  return noise;
}

double noise_at(const Noise* noise, uint32_t value_a) {
  return noise && std::isfinite(noise->of_value[value_a]) ? noise->of_value[value_a] : 0;
}

}  // namespace op_tools
