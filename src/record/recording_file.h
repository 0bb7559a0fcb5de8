// A recording's file: "<folder>/rank<R>-<pid>.oprec". Blocks of rows that are appended as the program runs, each with
// its length and a checksum: whatever the end of the process, what was written before it can be read.
#pragma once

#include <string>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// The whole file, also while it is written. Throws Error, with path and offset, when it is no recording; a damaged or
// unfinished file is read up to the damage (Recording::complete).
OP_TOOLS_API Recording read_recording(const std::string& path);

// The files of a folder (or the file itself), sorted by rank. Throws Error when there is none.
OP_TOOLS_API std::vector<std::string> find_recordings(const std::string& path);

}  // namespace op_tools
