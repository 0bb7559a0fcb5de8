// Options of OpTimeMeasure (base/options.h has those of all tools).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

enum class TimeMode : uint8_t { kSync, kEvent, kHost };
OP_TOOLS_API const Choices& time_modes();
OP_TOOLS_API std::string_view to_string(TimeMode mode);

struct TimeOptions : ToolOptions {
  TimeOptions() : ToolOptions("OP_TIME_MEASURE") {}

  Option<TimeMode> mode{
      this,
      TimeMode::kSync,
      {"mode", "OP_TIME_MEASURE_MODE",
       "`sync`: wait for the call's device before and after; `event`: events of the device, read later, "
       "without a stall; `host`: the time that issuing takes"},
      time_modes()};
  Option<int64_t> max_calls{this,
                            200'000,
                            {"max_calls", "OP_TIME_MEASURE_MAX_CALLS",
                             "single calls held in memory, for the trace; later ones are counted and go to calls.csv"},
                            at_least(0)};
  Option<bool> with_stack{
      this, false, {"with_stack", "", "note the source line of each call (some microseconds per call)"}};
  Option<bool> with_modules{
      this, false, {"with_modules", "", "note the module path of each call, as in `LeNet.conv1`"}};
  Option<bool> memory{
      this, false, {"memory", "", "note the memory that calls allocate, and the part still in use at the end"}};
  Option<bool> mark_ranges{this, false, {"mark_ranges", "", "make each call a range in a running torch.profiler"}};
  Option<bool> lines{this, true, {"lines", "", "print a line for each call, at level info"}};
  Option<bool> files{this, true, {"files", "", "write calls.csv, summary.csv and trace.json"}};
  Option<int64_t> first_step{this, 0, {"first_step", "", "the number of the first step"}, at_least(0)};
};
using ResolvedTimeOptions = Resolved<TimeOptions>;

}  // namespace op_tools
