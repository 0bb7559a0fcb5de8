// The files of a run: op_time_measure_result/<rank>/<time>/ with calls.csv, summary.csv and trace.json. The folder is
// made when the first of them is written. Thread-safe. Throws Error with path and reason.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "report/row_file.h"
#include "timing/time_records.h"
#include "timing/time_report.h"

namespace op_tools {

class TimeFiles {
 public:
  TimeFiles(std::string output_dir, const TimeRecords& records)
      : output_dir_(std::move(output_dir)), records_(records) {}

  // calls.csv: the calls that the records hold, then (when they are full) those that overflowed.
  void add_overflow(const std::vector<TimedCall>& calls);
  void add_recorded_calls();
  void write_summary(const std::vector<TimeRow>& rows);
  void write_trace(TimeMode mode);

  std::string root() const;  // empty when nothing was written

 private:
  const std::string& root_locked();
  void add_recorded_locked();
  void add_locked(const TimedCall& call);

  const std::string output_dir_;
  const TimeRecords& records_;
  mutable std::mutex mutex_;
  std::string root_;
  std::optional<RowFile> calls_;
  std::vector<EntryLabel> labels_;
  size_t in_file_ = 0;  // calls of the records that are in the file
  int64_t to_unix_ = 0;
};

}  // namespace op_tools
