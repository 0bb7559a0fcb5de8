// The only clock, and the only place that waits for devices or asks them for the time. Devices are spoken to through
// torch's device guard interface, so any backend will do. A Stopwatch belongs to a single thread; the functions and
// DeviceClock are for any.
//
//   Stopwatch watch(device, /*synchronize=*/true);
//   watch.start(); work(); double milliseconds = watch.stop();
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/export.h"

namespace op_tools {

// Nanoseconds on a clock that never goes back.
OP_TOOLS_API int64_t clock_now();
// The number to add to clock_now() for nanoseconds since 1970, the time that torch.profiler writes.
OP_TOOLS_API int64_t clock_to_unix();

// Waits for all work queued on the device: by device, or by its current stream where the backend cannot do that. Says
// once when it can do neither. Nothing to wait for on the CPU.
OP_TOOLS_API void wait_for_device(c10::Device device);

class OP_TOOLS_API Stopwatch {
 public:
  // `synchronize`: wait for all work queued on the device before starting and before stopping, so
  // that the time is the work's and not its queueing's.
  Stopwatch(c10::Device device, bool synchronize);

  void start();   // again after stop(), or in its place
  double stop();  // milliseconds since start()

 private:
  c10::Device device_;
  bool synchronize_;
  int64_t start_ = 0;
};

// Time as a device itself measures it: marks are put into its queue and read later, without a stall.
class OP_TOOLS_API DeviceClock {
 public:
  using Mark = void*;  // nullptr: the backend has no events that measure time

  ~DeviceClock();

  // Puts a mark into the current stream of the device. Reports once when the backend cannot.
  Mark mark(c10::Device device);
  // Waits until `last` has been reached. Nanoseconds between them, and the host's clock_now() at which the device was
  // at `first`. Takes both marks.
  struct Interval {
    int64_t start = 0;
    int64_t nanoseconds = 0;
  };
  Interval read(c10::Device device, Mark first, Mark last);
  void give_back(c10::Device device, Mark mark);
  // Measures again how the device's time relates to the host's. Waits for the device.
  void align(c10::Device device);

 private:
  struct PerDevice {
    c10::Device device;
    std::vector<Mark> free;
    Mark base = nullptr;  // was reached at base_time on the host's clock
    int64_t base_time = 0;
    bool unable = false;
  };
  PerDevice& of_locked(c10::Device device);
  Mark mark_locked(PerDevice& clock);

  std::mutex mutex_;
  std::vector<PerDevice> devices_;
};

}  // namespace op_tools
