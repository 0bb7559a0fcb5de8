// The account of a run as coverage.json in the folder of its files, for programs and for those who read the files
// later.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "base/export.h"
#include "coverage/coverage.h"
#include "tensor/value.h"

namespace op_tools {

// What the file has beside the account.
struct RunFacts {
  std::string tool;                      // "OpAutoCompare"
  int64_t ranks = 1;                     // processes that the launcher started
  std::map<std::string, uint64_t> rows;  // of each file of rows, by its name
  Value program = make_dict({});         // the command that starts the program again, and its folder, where known
};

// The fields, `gaps` (tokens) and `reasons` (the same in words), and the facts. Replaces a file of that name, in a
// single step. Error with path and system message, or where the disk does not take it within `time_limit`.
OP_TOOLS_API void write_coverage(const std::string& folder, const Coverage& account, const RunFacts& facts,
                                 std::chrono::seconds time_limit = std::chrono::minutes(1));

}  // namespace op_tools
