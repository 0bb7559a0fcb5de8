// The calls as a Chrome trace, which chrome://tracing and Perfetto open: tracks by thread and by device, steps, arrows
// from forward to backward. Times are on the clock of torch.profiler's traces: baseTimeNanoseconds + ts microseconds
// since 1970.
#pragma once

#include <cstdint>
#include <string>

#include "timing/time_options.h"
#include "timing/time_records.h"

namespace op_tools {

// `to_unix`: clock_to_unix(). Throws Error with path and reason; a file that has its name is complete.
void write_trace_file(const std::string& path, const TimeRecords& records, TimeMode mode, int64_t to_unix);

}  // namespace op_tools
