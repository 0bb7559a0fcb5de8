// Where the user's program stands, by the stack of its language (base/host.h): for hooks, in the program's thread,
// during a call.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools {

// Lines "file:line function", the innermost line of the user's own code first. The strings live until the process ends:
// a program has as many as it has places in its code.
constexpr size_t kMostStackLines = 8;
using StackLines = c10::SmallVector<const std::string*, kMostStackLines>;
OP_TOOLS_API StackLines current_lines();                // nothing in threads without such a stack
OP_TOOLS_API std::vector<std::string> current_stack();  // copies of the strings

}  // namespace op_tools
