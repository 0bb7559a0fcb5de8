// Options of OpRecord (base/options.h has what all tools share).
#pragma once

#include <cstdint>

#include "base/options.h"

namespace op_tools {

struct RecordOptions : ToolOptions {
  RecordOptions() : ToolOptions("OP_RECORD") {}

  Option<bool> statistics{
      this,
      true,
      {"statistics", "OP_RECORD_STATISTICS", "note statistics and a hash of each tensor; off: shapes and links only"}};
  Option<bool> with_stack{this, true, {"with_stack", "", "note the program's line of each call"}};
  Option<bool> with_modules{this, true, {"with_modules", "", "note the module of each call"}};
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
