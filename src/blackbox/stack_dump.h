// The stacks of all threads of the program's language, whatever the threads hold or do.
#pragma once

#include "base/export.h"

namespace op_tools {

// Appends what the host's dump writes (base/host.h); nothing where there is no dump. The dump runs in a child process,
// which has a copy of the memory: where it fails, the child ends and not the program. False: each of several children
// failed within seconds, or none could be made; the file is as before.
OP_TOOLS_API bool write_stacks(int descriptor);

}  // namespace op_tools
