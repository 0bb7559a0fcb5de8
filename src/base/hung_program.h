// The program hangs and is being ended (SIGTERM): a flush must not wait for a device without end. Any
// thread.
#pragma once

#include "base/export.h"

namespace op_tools {

OP_TOOLS_API void set_program_hangs();
bool program_hangs();

}  // namespace op_tools
