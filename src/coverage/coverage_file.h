// The account of a run as coverage.json in the folder of its files, for programs and for those who read the files
// later.
#pragma once

#include <chrono>
#include <string>

#include "base/export.h"
#include "coverage/coverage.h"
#include "tensor/value.h"

namespace op_tools {

// The fields, then `gaps` (tokens) and `reasons` (the same in words), and `program`: the command that starts the
// program again, and its folder (a Dict; empty where they are not known). Replaces a file of that name, in a single
// step. Error with path and system message, or where the disk does not take it within `time_limit`.
OP_TOOLS_API void write_coverage(const std::string& folder, const Coverage& account, const Value& program,
                                 std::chrono::seconds time_limit = std::chrono::minutes(1));

}  // namespace op_tools
