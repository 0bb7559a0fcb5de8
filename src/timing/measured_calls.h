// Measured intervals before they become records: marks of devices are read, times of inner calls are taken off, the
// nodes of a backward pass are put together, and the line of the call is printed. Thread-safe.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "timing/call_timer.h"
#include "timing/stopwatch.h"
#include "timing/time_options.h"
#include "timing/time_records.h"

namespace op_tools {

// A backward pass over a call, until it is through.
struct BackwardPass {
  int task = 0;
  TimedCall sum;
  CallBytes bytes;
  bool any = false;
};

// A measured interval: a call, a node of its backward, or the end of a pass.
struct Measured {
  Measured() = default;
  Measured(CallTimer& timer, uint64_t id, uint32_t entry, int64_t step);

  struct Line {
    std::string op, values;
  };
  TimedCall call;
  CallBytes bytes;
  std::unique_ptr<Line> line;  // to be printed; nullptr: none is wanted
  uint32_t depth = 0;
  bool has_inside = false;
  c10::Device device{c10::kCPU};
  DeviceClock::Mark first = nullptr, last = nullptr;
  std::shared_ptr<BackwardPass> pass;  // a node of it
  bool ends_pass = false;              // the pass itself
};

class MeasuredCalls {
 public:
  MeasuredCalls(TimeMode mode, DeviceClock& clock, TimeRecords& records)
      : mode_(mode), clock_(clock), records_(records) {}

  void add(Measured&& measured);
  // Reads the devices' times. In the order of the ends: self times need it.
  void drain();

 private:
  void settle(Measured& measured);
  int64_t self_time(const Measured& measured);

  const TimeMode mode_;
  DeviceClock& clock_;
  TimeRecords& records_;
  std::mutex pending_mutex_, drain_mutex_, inside_mutex_;
  std::deque<Measured> pending_;
  std::atomic<size_t> waiting_{0};  // in `pending_`, or taken from it and not settled
  // By thread and depth: time of intervals that ended inside an interval that has not ended yet.
  std::unordered_map<uint32_t, std::vector<int64_t>> inside_of_;
};

}  // namespace op_tools
