// A list of calls in a file, `calls=`: an item of 16 hexadecimal digits per line. Items: hooks/call_items.h.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "base/export.h"

namespace op_tools {

using CallList = std::unordered_set<uint64_t>;

// Error when the file cannot be read or holds anything but items. `source`: the argument or variable, for messages.
CallList read_call_list(const std::string& path, const std::string& source);
OP_TOOLS_API std::string item_text(uint64_t item);

}  // namespace op_tools
