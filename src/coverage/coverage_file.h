// The account of a run as coverage.json in the folder of its files, for programs and for those who read the files
// later.
#pragma once

#include <string>

#include "base/export.h"
#include "coverage/coverage.h"

namespace op_tools {

// The fields, then `gaps` (tokens) and `reasons` (the same in words). Replaces a file of that name, in a single step.
// Error with path and system message.
OP_TOOLS_API void write_coverage(const std::string& folder, const Coverage& account);

}  // namespace op_tools
