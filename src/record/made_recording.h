// A recording made of plain values: of another tool's dump, or of a test's rows. Any thread.
#pragma once

#include "base/export.h"
#include "record/recording.h"
#include "tensor/value.h"

namespace op_tools {

// `rows`: a Dict with "header" (a Dict), "values" and "calls" (Lists of Dicts whose keys are the members of
// RecordedValue and RecordedCall; a missing member has its default; "inputs" and "outputs" of a call are Lists of
// (place, number of the value)). Throws Error that names the row when a key has another type, or a number is out of
// range.
OP_TOOLS_API Recording make_recording(const Value& rows);

}  // namespace op_tools
