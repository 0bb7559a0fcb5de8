#include "timing/time_files.h"

#include <utility>

#include "base/options.h"
#include "base/run_folder.h"
#include "timing/stopwatch.h"
#include "timing/trace_file.h"

namespace op_tools {
namespace {

double ms(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

}  // namespace

const std::string& TimeFiles::root_locked() {
  if (root_.empty()) {
    root_ = claim_run_folder(output_dir_, "op_time_measure_result", distributed_rank());
    to_unix_ = clock_to_unix();
  }
  return root_;
}

std::string TimeFiles::root() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return root_;
}

void TimeFiles::add_locked(const TimedCall& call) {
  if (call.is_part) return;
  const EntryLabel& label = labels_[call.entry];
  const auto integer = [](auto number) { return static_cast<int64_t>(number); };
  if (!calls_->has_room()) return;
  calls_->add_cells({integer(call.id), call.step, label.op, to_string(label.phase), integer(call.pass),
                     (call.start + to_unix_) / 1000, ms(call.nanoseconds), ms(call.self), ms(call.host), label.device,
                     label.shapes, label.dtypes, label.line, label.module, integer(call.thread), integer(call.failed)});
}

void TimeFiles::add_recorded_locked() {
  if (!calls_) {
    calls_.emplace(root_locked() + "/calls.csv",
                   std::vector<std::string>{"id", "step", "op", "phase", "pass", "start_us", "ms", "self_ms", "host_ms",
                                            "device", "shapes", "dtypes", "line", "module", "thread", "failed"});
  }
  const std::vector<TimedCall> calls = records_.calls(in_file_);
  for (EntryLabel& label : records_.labels(labels_.size())) labels_.push_back(std::move(label));
  for (const TimedCall& call : calls) add_locked(call);
  in_file_ += calls.size();
}

void TimeFiles::add_overflow(const std::vector<TimedCall>& calls) {
  std::lock_guard<std::mutex> lock(mutex_);
  add_recorded_locked();
  for (const TimedCall& call : calls) add_locked(call);
}

void TimeFiles::add_recorded_calls() {
  std::lock_guard<std::mutex> lock(mutex_);
  add_recorded_locked();
  calls_->flush();
}

void TimeFiles::write_summary(const std::vector<TimeRow>& rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  RowFile file(root_locked() + "/summary.csv", TimeRow::columns().names());
  for (const TimeRow& row : rows) file.add(TimeRow::columns().value(row));
  file.flush();
}

void TimeFiles::write_trace(TimeMode mode) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string path = root_locked() + "/trace.json";
  write_trace_file(path, records_, mode, to_unix_);
}

}  // namespace op_tools
