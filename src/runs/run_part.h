// A part of a recording: recordings of many ranks do not fit into memory together, their parts do. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// The calls of the steps from `first` to before `end`, and their values. Who made a value before them is not known in
// it; such a value that shows memory that was never written has neither statistics nor a hash.
OP_TOOLS_API Recording steps_of(const Recording& run, int64_t first, int64_t end);

OP_TOOLS_API std::map<int64_t, size_t> calls_by_step(const Recording& run);

// The operator of the first collective call from a step on; "": there is none.
OP_TOOLS_API std::string first_collective(const Recording& run, int64_t step);

}  // namespace op_tools
