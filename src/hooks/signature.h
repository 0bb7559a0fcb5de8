// Which calls are alike: same operator, shapes and dtypes. For the limits of tools ("the first three of each") and for
// tables by shape.
#pragma once

#include <cstdint>

#include "hooks/export.h"
#include "hooks/op_call.h"

namespace op_tools {

// Of the forward call's inputs; stable within a process only.
OP_TOOLS_API uint64_t signature_of(OpCall& call);

}  // namespace op_tools
