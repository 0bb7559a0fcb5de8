// Where the user's program stands: the language's own stack, which only the bindings of that language know.
// Set once when they are loaded; asked by hooks in the program's thread, during a call.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hooks/export.h"

namespace op_tools {

// Lines "file:line function", the innermost line of the user's own code first. Must be quick (it runs per captured
// call) and may return nothing (threads without such a stack).
using StackSource = std::function<std::vector<std::string>()>;

OP_TOOLS_API void set_stack_source(StackSource source);
OP_TOOLS_API std::vector<std::string> current_stack();

}  // namespace op_tools
