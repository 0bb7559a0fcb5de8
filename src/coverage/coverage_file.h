// The account of a run as coverage.json in the folder of its files, for programs and for those who read the files
// later.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/export.h"
#include "coverage/coverage.h"
#include "tensor/value.h"

namespace op_tools {

// What the file has beside the account.
struct RunFacts {
  std::string tool;                      // "OpAutoCompare"
  int64_t ranks = 1;                     // processes that the launcher started
  std::map<std::string, uint64_t> rows;  // of each file of rows, by its name; of OpCapture: calls, by operator
  Value program = make_dict({});         // the command that starts the program again, and its folder, where known
};

inline constexpr const char* kCoverageFile = "coverage.json";

// The fields, `gaps` (tokens) and `reasons` (the same in words), and the facts. Replaces a file of that name, in a
// single step. Error with path and system message, or where the disk does not take it within `time_limit`.
OP_TOOLS_API void write_coverage(const std::string& folder, const Coverage& account, const RunFacts& facts,
                                 std::chrono::seconds time_limit = std::chrono::minutes(1));

// An account that was read; fields that other versions of op_tools have are left out.
struct ReadAccount {
  Coverage account;
  RunFacts facts;
};
// Of a folder; nullopt: it has none (a symbolic link is none). Error that names the file: it is damaged.
OP_TOOLS_API std::optional<ReadAccount> read_coverage(const std::string& folder);

}  // namespace op_tools
