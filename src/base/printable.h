// Texts from outside (names of modules, paths, errors) for a terminal.
#pragma once

#include <string>
#include <string_view>

#include "base/export.h"

namespace op_tools {

// A character that would drive a terminal, end the line, or turn the direction of the text behind it becomes its
// number: \x1b, \n, \u202e. So does a byte that is no UTF-8. `keep`: characters of ASCII that stay. As printable() of
// op_tools/_base/error_text.py.
OP_TOOLS_API std::string printable(std::string_view text, std::string_view keep = {});

}  // namespace op_tools
