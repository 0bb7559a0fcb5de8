// The stacks of all threads of the program's language, whatever the threads hold or do.
#pragma once

#include "base/export.h"

namespace op_tools {

// Writes them to a file with system calls alone: no lock, no memory. It may fail with a signal where a thread changes
// its stack meanwhile. Set once by the bindings of the language.
using StackDump = void (*)(int descriptor);
OP_TOOLS_API void set_stack_dump(StackDump dump);

// Appends the dump's text; nothing where no dump is set. The dump runs in a child process, which has a copy of the
// memory: where it fails, the child ends and not the program. False: each of several children failed within seconds,
// or none could be made; the file is as before.
OP_TOOLS_API bool write_stacks(int descriptor);

}  // namespace op_tools
