// The contents of a failure's files besides its values, so that run_op_from_data judges by the facts by which the
// failure was judged: SavedCall::judged are the facts of the call, SavedOutput::memory the memory of its results. One
// description of the fields serves writing and reading.
#pragma once

#include <string>

#include "base/export.h"
#include "compare/call_facts.h"
#include "compare/rerun/run_outcome.h"
#include "tensor/value.h"

namespace op_tools {

OP_TOOLS_API Value facts_value(const CallFacts& facts);
// `written_beside`: MemoryBeside::changes().
OP_TOOLS_API Value memory_value(const RunOutcome& run, const std::string& written_beside);

// Throw Error when a field is missing or has another type.
OP_TOOLS_API void read_facts(const Value& value, CallFacts& facts);
OP_TOOLS_API void read_memory(const Value& value, RunOutcome& run);
OP_TOOLS_API std::string read_written_beside(const Value& memory);  // older files lack it: nowhere

}  // namespace op_tools
