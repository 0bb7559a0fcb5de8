// The text of an exception of any kind.
#pragma once

#include <exception>
#include <string>

#include "base/export.h"

namespace op_tools {

// torch's own without the C++ stack that its what() ends with. Never empty.
OP_TOOLS_API std::string exception_text(const std::exception& error);

}  // namespace op_tools
