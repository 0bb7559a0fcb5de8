// The account of a run in words and in JSON: the only place where sentences about it are made. Lines for people have at
// most 80 columns. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "coverage/coverage.h"
#include "report/columns.h"
#include "tensor/value.h"

namespace op_tools {

// A value of an enumeration of the account: in JSON and in Python, and its meaning, for people.
struct Token {
  std::string_view name, help;
};
OP_TOOLS_API Token token_of(Verdict verdict);  // "not judged"
OP_TOOLS_API Token token_of(Gap gap);          // "most_unjudged"
OP_TOOLS_API Token token_of(Unjudged reason);  // "no_reference"
OP_TOOLS_API Token token_of(Loss reason);      // "no_room"

// With the numbers of this account: "3 threads made 40 calls unseen". A sentence for each gap.
OP_TOOLS_API std::vector<std::string> reasons(const Coverage& account);
// "Looked at: ...", and where there are gaps "NOT JUDGED: ...": above a verdict.
OP_TOOLS_API std::vector<std::string> lines(const Coverage& account);
// "Looked at: ..." where something was unseen, else nothing: above the table of a tool that gives no verdict. A line
// that always stands is not read.
OP_TOOLS_API std::vector<std::string> lines_of_unseen(const Coverage& account);

// A Dict: the fields by their names.
OP_TOOLS_API Value to_value(const Coverage& account);
// Gives the fields that a Dict names their values. Error that names a key which is no field, or a value of another
// type.
OP_TOOLS_API void set_fields(const Value& dict, Coverage& account);
OP_TOOLS_API RowDescription describe_coverage();

}  // namespace op_tools
