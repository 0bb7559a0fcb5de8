#include "timing/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace op_tools {

Stopwatch::Stopwatch(c10::Device device, bool synchronize)
    : device_(device), synchronize_(synchronize && !device.is_cpu()) {}

void Stopwatch::start() {
  wait_for_device();
  start_ = std::chrono::steady_clock::now();
}

double Stopwatch::stop() {
  wait_for_device();
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start_;
  return elapsed.count();
}

void Stopwatch::wait_for_device() const {
  if (!synchronize_) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.synchronizeDevice(device_.has_index() ? device_.index() : guard.getDevice().index());
}

}  // namespace op_tools
