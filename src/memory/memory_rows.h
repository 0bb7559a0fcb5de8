// The result of OpMemoryCheck: rows of places that allocated, of writes outside of blocks, and of single blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"
#include "report/columns.h"

namespace op_tools {

// The memory that a place of the program allocated on a device.
struct MemoryRow {
  std::string device, op, phase, module, line, kind;
  int64_t alive = 0, alive_bytes = 0;  // still allocated
  int64_t peak_bytes = 0;              // of those that were there at the device's peak
  int64_t allocations = 0, allocated_bytes = 0;
  bool leaks = false;
  double growth = 0;        // bytes per step
  int64_t birth_steps = 0;  // different steps in which living blocks were allocated
  int64_t first_step = 0, last_step = 0;
  std::vector<int64_t> bytes_at_steps;  // alive when step_distance, 2 * step_distance, ... steps had ended
  int64_t step_distance = 1;
  std::string freed_by;  // the last block
  std::string stack;     // with backtrace
  static const Columns<MemoryRow>& columns();
};

// An operator wrote outside of a block.
struct OverwriteRow {
  std::string op, phase, module, line;  // that ran before it was seen
  int64_t step = 0;
  std::string side;       // "behind", "before"
  int64_t operators = 1;  // that may have written, with it
  int64_t bytes = 0, offset = 0, block_bytes = 0;
  std::string made_by, made_at;  // the block
  static const Columns<OverwriteRow>& columns();
};

// A block that is still allocated.
struct BlockRow {
  int64_t place = 0;  // its row
  int64_t address = 0, bytes = 0, step = 0;
  std::string device;
  static const Columns<BlockRow>& columns();
};

// A device's memory as a whole, as far as it was seen.
struct DeviceMemoryRow {
  std::string device;
  int64_t alive_bytes = 0, peak_bytes = 0;
  int64_t peak_step = 0;
  std::string peak_op;   // that allocated last before the peak
  bool reports = false;  // its allocator reports to torch's profiler, or is the CPU's
  // As reports to the profiler say.
  std::optional<int64_t> allocator_bytes, allocator_peak_bytes;
  std::optional<int64_t> reserved_bytes, reserved_peak_bytes, unused_bytes;
  static const Columns<DeviceMemoryRow>& columns();
};

}  // namespace op_tools
