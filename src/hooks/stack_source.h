// Where the user's program stands: the language's own stack, which only the bindings of that language know.
// Set once when they are loaded; asked by hooks in the program's thread, during a call.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools {

// Lines "file:line function", the innermost line of the user's own code first. The strings live until the process ends:
// a program has as many as it has places in its code.
constexpr size_t kMostStackLines = 8;
using StackLines = c10::SmallVector<const std::string*, kMostStackLines>;
// Must be quick (it runs per captured call) and may return nothing (threads without such a stack).
// `most`: lines that are wanted.
using StackSource = std::function<StackLines(size_t most)>;
OP_TOOLS_API void set_stack_source(StackSource source);

// Of the innermost user's line the line, and the path of the innermost module in whose forward() this thread is:
// "ResNet.layer3.0.conv1". nullptr: there is none, or it was not asked for. The strings live until the process ends.
struct Place {
  const std::string *line = nullptr, *module = nullptr;
};
// Of every call that a tool takes, so it is a single pass over the program's stack.
using PlaceSource = Place (*)(bool line, bool module);
OP_TOOLS_API void set_place_source(PlaceSource source);
Place place_on_stack(bool line, bool module);

OP_TOOLS_API StackLines current_lines(size_t most = kMostStackLines);
OP_TOOLS_API std::vector<std::string> current_stack();  // copies of the strings

}  // namespace op_tools
