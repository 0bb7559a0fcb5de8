// A recording as lines of JSON, for programs that read nothing else: {"kind": "header", ...}, then {"kind": "value",
// ...} for each value and {"kind": "call", ...} for each call, with the keys that make_recording() takes; {"kind":
// "end"} where the recording is complete. Pure functions, any thread.
#pragma once

#include <string>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// Makes the file, or writes it anew. Throws Error, with path and system message.
OP_TOOLS_API void write_json_lines(const Recording& recording, const std::string& path);

// Throws Error, with path and line. A line at the end that is cut off, as a disk that is full leaves it, is left out.
OP_TOOLS_API Recording read_json_lines(const std::string& path);

}  // namespace op_tools
