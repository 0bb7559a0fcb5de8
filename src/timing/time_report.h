// The measured times as rows, grouped as the reader wants, and as a table. No clock, no files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "report/columns.h"
#include "timing/time_options.h"
#include "timing/time_records.h"

namespace op_tools {

struct TimeRow {
  std::string op;  // of several when grouped by line or module: the operator that took most, "+ 3" behind it
  std::string phase;
  std::string shapes, dtypes, device;  // empty where the row has several
  std::string line, module;
  uint64_t calls = 0, failed = 0;
  double total_ms = 0, self_ms = 0, mean_ms = 0, p50_ms = 0, p99_ms = 0, min_ms = 0, max_ms = 0;
  double share = 0;  // of the self time of all rows
  int64_t bytes_read = 0, bytes_written = 0;
  int64_t flops = 0;  // 0: not known
  int64_t allocated_bytes = 0, peak_bytes = 0;

  double gb_per_s() const {
    return total_ms > 0 ? static_cast<double>(bytes_read + bytes_written) / total_ms / 1e6 : 0;
  }
  double gflop_per_s() const { return total_ms > 0 ? static_cast<double>(flops) / total_ms / 1e6 : 0; }

  OP_TOOLS_API static const Columns<TimeRow>& columns();
};

enum class TimeGroup : uint8_t { kOp, kShape, kLine, kModule };

// Most self time first. `flops`: by entry, of a single call; negative where not known.
OP_TOOLS_API std::vector<TimeRow> time_rows(const TimeRecords::Snapshot& records, TimeGroup group,
                                            const std::vector<int64_t>& flops);
// The first `limit` rows for people.
OP_TOOLS_API std::string time_table(const std::vector<TimeRow>& rows, size_t limit);

// How many floating point operations a call of each entry does (Host::flops): asked once for each, and cached.
class FlopCounts {
 public:
  std::vector<int64_t> of(const std::vector<TimeEntry>& entries);

 private:
  std::mutex mutex_;
  std::vector<int64_t> known_;
};

}  // namespace op_tools
