// Measures an interval of work, a call or an autograd node, on the thread that does it: waits for devices or puts
// marks into their queues as the mode wants, and knows in which intervals it is nested. Used by the time hook.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "timing/stopwatch.h"
#include "timing/time_options.h"
#include "timing/tsc_clock.h"

namespace op_tools {

// Devices that have to be waited for; nearly always a single device or none.
class CallDevices {
 public:
  void add(c10::Device device) {
    if (!device.is_cpu()) add_other(device);
  }
  bool empty() const { return devices_.empty(); }
  c10::Device first() const { return devices_.front(); }
  auto begin() const { return devices_.begin(); }
  auto end() const { return devices_.end(); }

 private:
  void add_other(c10::Device device);

  c10::SmallVector<c10::Device, 2> devices_;
};

// The state that timers of a thread share: its clock, and the intervals that have begun and not ended.
class TimedThread {
 public:
  static TimedThread& current();  // finding it takes a call, so a call does it once

  const uint32_t number;  // of this thread for files: the system's
  TscClock clock;

 private:
  friend class CallTimer;
  TimedThread();

  // By value: a timer may die on another thread. An interval whose end never came (its autograd node raised) stays
  // until an interval below it ends, or its timer dies here.
  struct Open {
    uint64_t number;
    const void* owner;
    bool has_inside;
  };
  std::vector<Open> open_;
  uint64_t last_number_ = 0;
};

class CallTimer {
 public:
  // Of the calling thread, where it is started and stopped. `owner`: intervals of the same owner nest, those of
  // different owners don't know of each other.
  CallTimer(TimeMode mode, DeviceClock& clock, const void* owner, TimedThread& thread);
  ~CallTimer();  // removes an interval that was not stopped
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  void start(const CallDevices& devices);
  // `late`: asked when no device was known at the start; the call may have made a tensor on a device.
  template <class Late>
  void stop(Late&& late) {
    take_end();
    if (!devices_.empty()) return;
    late(devices_);
    if (!devices_.empty() && mode_ != TimeMode::kHost) {
      wait();
      end_ = thread_.clock.now();
    }
  }

  int64_t start_time() const { return start_; }
  int64_t host_time() const { return end_ > start_ ? end_ - start_ : 0; }
  uint32_t thread_number() const { return on_thread_; }
  uint32_t depth() const { return depth_; }
  bool has_inside() const { return has_inside_; }  // others of its owner began while it was open
  const CallDevices& devices() const { return devices_; }

  // Event mode, when the device has events: to be read later, by their taker. Else the host's time is the time.
  bool has_marks() const { return first_ != nullptr && last_ != nullptr; }
  void take_marks(DeviceClock::Mark* first, DeviceClock::Mark* last);

 private:
  void wait() const;
  void take_end();
  void take_off();

  const TimeMode mode_;
  DeviceClock& clock_;
  const void* const owner_;
  TimedThread& thread_;
  const uint32_t on_thread_;
  CallDevices devices_;
  uint64_t number_ = 0;  // among the thread's intervals
  uint32_t depth_ = 0;
  bool runs_ = false, has_inside_ = false;
  bool waits_ = false;
  DeviceClock::Mark first_ = nullptr, last_ = nullptr;
  int64_t start_ = 0, end_ = 0;
};

}  // namespace op_tools
