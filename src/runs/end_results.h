// The results that a program is run for: losses, gradients of parameters, parameters. Where they differ by more than
// rounding the runs do not agree, whatever their calls say. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/divergence.h"

namespace op_tools {

// A result that differs: the values, the last calls that read or made them, by how much, and how much rounding
// explains.
struct EndDifference {
  uint32_t value_a = kNoCall, value_b = kNoCall;  // kNoCall: that run has none
  uint32_t call_a = kNoCall, call_b = kNoCall;
  double difference = 0, limit = 0;
};

// The first in the order of A's calls. `judged`: the verdicts on the calls; results of a pair of calls from equal
// inputs within its limit are equal. Moves of optimizers for gradients that are rounding alone are in all later
// results.
OP_TOOLS_API std::optional<EndDifference> differing_result(const Recording& a, const Recording& b,
                                                           const Divergence& judged, const Noise* noise);

// All losses, all gradients of leaves and all parameters are seen on both sides and equal but for rounding, whatever
// the calls say. False where a run has no losses or no gradients.
bool all_results_agree(const Recording& a, const Recording& b, const Divergence& judged);

// A value, and the last call that it was seen in.
struct SeenValue {
  uint32_t value = kNoCall, call = kNoCall;
};
// The last values that calls wrote to parameters, by step and name.
std::map<std::pair<int64_t, std::string_view>, SeenValue> written_parameters(const Recording& run);

// By number of the value: a loss, a gradient of a leaf or a parameter.
std::vector<bool> end_values(const Recording& run);

// By number of the call: a loss, a gradient of a leaf or a parameter is made of its results.
std::vector<bool> calls_behind_results(const Recording& run);

}  // namespace op_tools
