// Settings of OpTimeMeasure (base/options.h has what all tools share).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

enum class TimeMode : uint8_t { kSync, kEvent, kHost };
OP_TOOLS_API std::string_view to_string(TimeMode mode);

struct TimeOptions : ToolOptions {
  std::optional<std::string> mode;    // "sync" | "event" | "host"; OP_TIME_MEASURE_MODE
  std::optional<int64_t> max_calls;   // single calls kept in memory, for the trace; OP_TIME_MEASURE_MAX_CALLS, 200000
  std::optional<bool> with_stack;     // note the source line of each call
  std::optional<bool> with_modules;   // note the module path of each call (set by the Python package)
  std::optional<bool> memory;         // note what each call allocates, and what is alive at the end
  std::optional<bool> mark_ranges;    // each call as a range in a running torch.profiler
  std::optional<bool> lines;          // a line for each call (default)
  std::optional<bool> files;          // calls.csv, summary.csv, trace.json (default)
  std::optional<int64_t> first_step;  // the number of the first step
};
struct ResolvedTimeOptions : ResolvedOptions {
  TimeMode mode = TimeMode::kSync;
  int64_t max_calls = 200'000;
  bool with_stack = false;
  bool with_modules = false;
  bool memory = false;
  bool mark_ranges = false;
  bool lines = true;
  bool files = true;
  int64_t first_step = 0;
};
OP_TOOLS_API ResolvedTimeOptions resolve(const TimeOptions& options);

}  // namespace op_tools
