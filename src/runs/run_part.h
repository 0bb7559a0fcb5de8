// A part of a recording: recordings of many ranks do not fit into memory together, their parts do. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// The calls of the steps from `first` to before `end`, and their values. Who made a value before them is not known in
// it; such a value that shows memory that was never written has neither statistics nor a hash.
OP_TOOLS_API Recording steps_of(const Recording& run, int64_t first, int64_t end);

// Parts of a recording in a file, each of which is read without the others. Has in memory: the recording's strings and
// lists, and of each part the values that are older than the part.
class OP_TOOLS_API RecordingParts {
 public:
  // `run` has blocks. `ends`, ascending: for each part but the last the step behind it.
  RecordingParts(const Recording& run, const std::vector<int64_t>& ends);

  // steps_of() that part. Throws Error where the file is no longer as it was read.
  Recording read(size_t part) const;

 private:
  struct Part {
    int64_t first, end;    // steps
    size_t begin_block;    // the first block with its calls and their tensors; behind end_block: there is none
    size_t end_block = 0;  // the last
    std::vector<std::pair<uint32_t, RecordedValue>> older;  // by number
  };
  size_t part_of(int64_t step) const;
  void find_blocks(const Recording& run);
  void find_older_values(const Recording& run);

  Recording whole_;  // without values, uses and calls
  std::vector<Part> parts_;
};

OP_TOOLS_API std::map<int64_t, size_t> calls_by_step(const Recording& run);

// The operator of the first collective call from a step on; "": there is none.
OP_TOOLS_API std::string first_collective(const Recording& run, int64_t step);

}  // namespace op_tools
