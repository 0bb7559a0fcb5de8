// The only clock, and the only place that waits for a device. One thread; not for calls that
// overlap.
//
//   Stopwatch watch(device, /*synchronize=*/true);
//   watch.start(); work(); double milliseconds = watch.stop();
#pragma once

#include <c10/core/Device.h>

#include <chrono>

#include "hooks/export.h"

namespace op_tools {

class OP_TOOLS_API Stopwatch {
 public:
  // `synchronize`: wait for all work queued on the device before starting and before stopping, so
  // that the time is the work's and not its queueing's. Nothing to wait for on the CPU.
  Stopwatch(c10::Device device, bool synchronize);

  void start();   // again after stop(), or in its place
  double stop();  // milliseconds since start(), on a clock that never goes back

 private:
  void wait_for_device() const;

  c10::Device device_;
  bool synchronize_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace op_tools
