// Options of OpRecord (base/options.h has those of all tools).
#pragma once

#include <cstdint>

#include "base/disk_time.h"
#include "base/options.h"

namespace op_tools {

enum class RecordFormat : uint8_t { kBinary, kJsonLines };

struct RecordOptions : ToolOptions {
  RecordOptions() : ToolOptions("OP_RECORD") {}

  Option<bool> statistics{
      this,
      true,
      {"statistics", "OP_RECORD_STATISTICS", "note statistics and a hash of each tensor; off: shapes and links only"}};
  Option<RecordFormat> format{this,
                              RecordFormat::kBinary,
                              {"format", "OP_RECORD_FORMAT",
                               "`oprec`: a compact file; `jsonl`: at the end of the recording lines of JSON beside it, "
                               "too"},
                              {"oprec", "jsonl"}};
  Option<bool> with_stack{this, true, {"with_stack", "", "note the program's line of each call"}};
  Option<bool> with_modules{this, true, {"with_modules", "", "note the module of each call"}};
  Option<bool> modules_only{
      this,
      false,
      {"modules_only", "OP_RECORD_MODULES_ONLY",
       "a row for each call of a module, forward and backward, in place of each operator; and for "
       "the loss and each step of an optimizer (torch level)"}};
  Option<bool> row_hashes{
      this,
      false,
      {"row_hashes", "OP_RECORD_ROW_HASHES",
       "fingerprints of the rows of each tensor of a forward call, too: of its batch and sequence dimensions, for "
       "`op-tools compare --as-sequence`"}};
  Option<double> write_timeout{
      this,
      kDiskSilence,
      {"write_timeout", "OP_TOOLS_WRITE_TIMEOUT",
       "seconds in which the disk must take rows; then recording stops, and the program goes on"},
      kAboveZero};
  Option<int64_t> jitter{this,
                         0,
                         {"jitter", "OP_RECORD_JITTER",
                          "change each element of the first floating-point tensor that a module is given by one unit "
                          "in the last place, up "
                          "or down as this seed says: a recording of the program's own noise; 0: do not"},
                         {0, INT64_MAX}};
};
using ResolvedRecordOptions = Resolved<RecordOptions>;

}  // namespace op_tools
