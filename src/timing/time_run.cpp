#include "timing/time_run.h"

#include "base/log.h"

namespace op_tools {

TimeRun::TimeRun(const ResolvedTimeOptions& options)
    : options(options),
      records(static_cast<size_t>(options.max_calls),
              options.files ? TimeRecords::Overflow([this](const auto& calls) { files.add_overflow(calls); })
                            : TimeRecords::Overflow()),
      files(options.output_dir, records),
      measured(options.mode, clock, records),
      step(options.first_step) {}

bool TimeRun::prints_lines() const {
  return options.lines && log::enabled(log::Level::kInfo);
}

void TimeRun::flush_files() {
  records.flush_overflow();
  if (!options.files) return;
  const TimeRecords::Snapshot snapshot = records.snapshot();
  const uint64_t count = snapshot.calls + snapshot.backward;
  if (count == 0 || written.exchange(count) == count) return;
  files.add_recorded_calls();
  files.write_summary(time_rows(snapshot, TimeGroup::kShape, flops.of(snapshot.entries)));
  files.write_trace(options.mode);
}

}  // namespace op_tools
