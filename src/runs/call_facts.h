// Facts about calls whose limits are asked for, before their tensors are looked at: from the table of traits. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "record/recording.h"
#include "runs/call_groups.h"
#include "runs/expected_error.h"

namespace op_tools {

// Of a call, or of a group of them.
CallInputs facts_of(const Recording& run, const CallNumbers& calls, bool is_group);

// The engine adds gradients up where no call is seen.
bool may_be_gradient(const RecordedValue& value);
// Root of the mean square of the largest gradient: of those that no backward call reads, a parameter's are among them.
double largest_gradient(const Recording& run);

using CallsById = std::unordered_map<uint64_t, uint32_t>;  // numbers in Recording::calls
CallsById forward_calls(const Recording& run);

// False: both are the backward call of relu, and as many elements are above its threshold on both sides: none went over
// it.
bool may_have_jumped(const Recording& run_a, const CallsById& forward_a, const RecordedCall& a, const Recording& run_b,
                     const CallsById& forward_b, const RecordedCall& b);

}  // namespace op_tools
