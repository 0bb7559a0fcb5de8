// The time of clock_now() for a third of its price: the processor's own counter, held to the system's clock. Both are
// read together every millisecond, and in between the counter goes on from there at the rate that it had between such
// readings. So a time is never further from the system's than a millisecond's error of that rate, some tens of
// nanoseconds, and may step back by as much; an interval of more than a millisecond is the system's own.
//
// The system's clock itself is asked for the first ten milliseconds and whenever both could not be read close together;
// for good where the kernel does not count by that counter, and when it ran otherwise than the system's clock (a
// machine that slept or was moved). Of a single thread.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <cstdint>

#include "base/export.h"
#include "timing/stopwatch.h"

namespace op_tools {

class OP_TOOLS_API TscClock {
 public:
  int64_t now() {
    if (!is_trusted()) return clock_now();
    const auto ticks = static_cast<uint64_t>(c10::getApproximateTime());
    return holds_at(ticks) ? time_at(ticks) : read();
  }

  // The parts of now().
  struct Reading {
    uint64_t ticks = 0;
    int64_t time = 0;
  };
  bool holds_at(uint64_t ticks) const { return ticks - last_.ticks < span_; }
  int64_t time_at(uint64_t ticks) const {
    return last_.time + static_cast<int64_t>(((ticks - last_.ticks) * rate_) >> kShift);
  }
  // Both clocks, read together: the counter goes on from here, if it is known well enough and its rate has not changed.
  void hold(const Reading& reading);
  bool is_trusted() const { return trust_ != Trust::kNone; }

 private:
  int64_t read();

  static constexpr int kShift = 32;
  enum class Trust : uint8_t { kUnknown, kGiven, kNone };

  Reading first_, last_;
  uint64_t rate_ = 0;  // nanoseconds of a tick, times 2^kShift; 0: not known yet
  uint64_t span_ = 0;  // ticks after last_ for which it is used; 0: it is not
  int disturbed_ = 0;  // times in a row that both could not be read close together
  Trust trust_ = Trust::kUnknown;
};

}  // namespace op_tools
