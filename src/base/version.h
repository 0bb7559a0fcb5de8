#pragma once

#include <string_view>

#include "base/export.h"

namespace op_tools {

OP_TOOLS_API std::string_view version();           // of op_tools: "0.1.0"
OP_TOOLS_API std::string_view built_with_torch();  // the torch it was compiled against: "2.13.0"

}  // namespace op_tools
