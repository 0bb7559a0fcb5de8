// Calls of a recording as items of a list (hooks/call_items.h), by which another run of the same program finds them.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// By number of the call. A backward call of the torch level has that of its forward call, with which it is captured; 0:
// that is not in the recording.
OP_TOOLS_API std::vector<uint64_t> recorded_items(const Recording& run);

}  // namespace op_tools
