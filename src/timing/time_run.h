// A use of OpTimeMeasure: its settings, and everything that its calls fill. Shared by the hook and the graphs of
// calls whose backward may come. Thread-safe by its parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "tensor/memory_watch.h"
#include "timing/measured_calls.h"
#include "timing/stopwatch.h"
#include "timing/time_files.h"
#include "timing/time_options.h"
#include "timing/time_records.h"
#include "timing/time_report.h"

namespace op_tools {

struct TimeRun {
  explicit TimeRun(const ResolvedTimeOptions& options);

  bool prints_lines() const;
  // Writes the files again when there is more for them.
  void flush_files();

  const ResolvedTimeOptions options;
  TimeRecords records;
  TimeFiles files;
  DeviceClock clock;
  MeasuredCalls measured;
  FlopCounts flops;
  AliveMemory alive;
  std::atomic<int64_t> step;
  std::atomic<uint64_t> in_graph{0}, written{0};
  std::atomic<bool> told_memory{false};
};

}  // namespace op_tools
