// Which backward call made a gradient that no call was seen to make: a call whose result has the same bits. The engine
// may hand a gradient on before all nodes of the call that made it have run, so before the call is recorded. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "record/recording.h"
#include "runs/alignment.h"

namespace op_tools {

// By number of the value: its original (moved_from), or the result of a backward call with the same bits; else
// itself.
std::vector<uint32_t> sources_of(const Recording& run);

// By number of the value: a backward call reads it as it is.
std::vector<bool> read_in_backward(const Recording& run, const std::vector<uint32_t>& sources);

// A's calls in `order`, but behind those that made their inputs; a group's result is judged at its last call. A
// gradient that no call made may be a sum of any that were made before.
std::vector<uint32_t> behind_makers(const Recording& run, const std::vector<uint32_t>& sources,
                                    const Alignment& alignment, const std::vector<uint32_t>& order);

}  // namespace op_tools
