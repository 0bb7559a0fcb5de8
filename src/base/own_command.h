// Commands of op_tools in messages, ready to copy: called as they can be called here (Host::own_commands()), their
// words quoted for a shell. As op_tools/_base/own_command.py. Any thread, without a lock.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/export.h"

namespace op_tools {

// "op-tools show 'my folder'"
OP_TOOLS_API std::string op_tools_line(std::initializer_list<std::string_view> words);
// "run_op_from_data folder"
OP_TOOLS_API std::string replay_line(std::initializer_list<std::string_view> words);

}  // namespace op_tools
