// A recording's facts about its program: versions, devices, flags, seeds, environment. Two recordings that disagree
// here need no other explanation.
#pragma once

#include <cstdint>

#include "base/export.h"
#include "hooks/op_call.h"
#include "tensor/value.h"

namespace op_tools {

// A Dict, on the thread of the call that is the first of the recording. `modules_only`: it has calls of modules.
Value run_header(const OpCall& call, int64_t rank, bool modules_only);

}  // namespace op_tools
