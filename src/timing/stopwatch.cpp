#include "timing/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>

#include "base/log.h"
#include "tensor/device_guard.h"

namespace op_tools {
namespace {

// By device type: how its work is waited for. Learned at the first failure: asking again would cost an exception each
// time.
enum class Wait : uint8_t { kDevice, kStream, kNot };

// The backend lacks the function. Any other error is the device's own and must be heard.
bool is_lacking(const c10::Error& error) {
  return std::string_view(error.what_without_backtrace()).find("support") != std::string_view::npos;
}

}  // namespace

int64_t clock_now() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t clock_to_unix() {
  // The pair that was read within the shortest time is the least disturbed.
  int64_t best = std::numeric_limits<int64_t>::max();
  int64_t offset = 0;
  for (int i = 0; i < 16; ++i) {
    const int64_t before = clock_now();
    const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
    const int64_t after = clock_now();
    if (after - before >= best) continue;
    best = after - before;
    offset = std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count() - (before + (after - before) / 2);
  }
  return offset;
}

void wait_for_device(c10::Device device) {
  if (is_immediate(device)) return;
  static std::array<std::atomic<Wait>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> known{};
  std::atomic<Wait>& how = known.at(static_cast<size_t>(device.type()));
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Device exact = with_index(device);
  if (how.load(std::memory_order_relaxed) == Wait::kDevice) {
    try {
      guard.synchronizeDevice(exact.index());
      return;
    } catch (const c10::Error& error) {
      if (!is_lacking(error)) throw;
      how.store(Wait::kStream, std::memory_order_relaxed);
    }
  }
  if (how.load(std::memory_order_relaxed) == Wait::kNot) return;
  try {
    guard.synchronizeStream(guard.getStream(exact));
  } catch (const c10::Error& error) {
    if (!is_lacking(error)) throw;
    how.store(Wait::kNot, std::memory_order_relaxed);
    log::warn(device.str() +
              " cannot be waited for, its times are those of queueing: " + error.what_without_backtrace());
  }
}

Stopwatch::Stopwatch(c10::Device device, bool synchronize) : device_(device), synchronize_(synchronize) {}

void Stopwatch::start() {
  if (synchronize_) wait_for_device(device_);
  start_ = clock_now();
}

double Stopwatch::stop() {
  if (synchronize_) wait_for_device(device_);
  return static_cast<double>(clock_now() - start_) / 1e6;
}

DeviceClock::~DeviceClock() {
  for (PerDevice& clock : devices_) {
    const c10::impl::VirtualGuardImpl guard(clock.device.type());
    if (clock.base) clock.free.push_back(clock.base);
    for (Mark mark : clock.free) guard.destroyEvent(mark, clock.device.index());
  }
}

DeviceClock::PerDevice& DeviceClock::of_locked(c10::Device device) {
  const c10::Device exact = with_index(device);
  for (PerDevice& clock : devices_) {
    if (clock.device == exact) return clock;
  }
  devices_.push_back(PerDevice{exact, {}});
  return devices_.back();
}

DeviceClock::Mark DeviceClock::mark_locked(PerDevice& clock) {
  if (clock.unable) return nullptr;
  Mark mark = nullptr;
  if (!clock.free.empty()) {
    mark = clock.free.back();
    clock.free.pop_back();
  }
  const c10::impl::VirtualGuardImpl guard(clock.device.type());
  try {
    guard.record(&mark, guard.getStream(clock.device), clock.device.index(), c10::EventFlag::BACKEND_DEFAULT);
  } catch (const c10::Error& error) {
    if (!is_lacking(error)) throw;
    clock.unable = true;
    log::warn(clock.device.str() +
              " has no events that measure time; waiting for it instead: " + error.what_without_backtrace());
    return nullptr;
  }
  return mark;
}

DeviceClock::Mark DeviceClock::mark(c10::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  PerDevice& clock = of_locked(device);
  if (!clock.base && !clock.unable) {
    wait_for_device(clock.device);
    clock.base = mark_locked(clock);
    wait_for_device(clock.device);
    clock.base_time = clock_now();
  }
  return mark_locked(clock);
}

DeviceClock::Interval DeviceClock::read(c10::Device device, Mark first, Mark last) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeEvent(last);  // the longest wait: not under the lock
  std::lock_guard<std::mutex> lock(mutex_);
  PerDevice& clock = of_locked(device);
  const auto between = [&](Mark from, Mark to) {
    return static_cast<int64_t>(guard.elapsedTime(from, to, clock.device.index()) * 1e6);
  };
  const Interval interval{clock.base_time + between(clock.base, first), std::max<int64_t>(between(first, last), 0)};
  clock.free.push_back(first);
  clock.free.push_back(last);
  return interval;
}

void DeviceClock::give_back(c10::Device device, Mark mark) {
  if (!mark) return;
  std::lock_guard<std::mutex> lock(mutex_);
  of_locked(device).free.push_back(mark);
}

void DeviceClock::align(c10::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  PerDevice& clock = of_locked(device);
  if (!clock.base) return;
  wait_for_device(clock.device);
  clock.free.push_back(clock.base);
  clock.base = mark_locked(clock);
  wait_for_device(clock.device);
  clock.base_time = clock_now();
}

}  // namespace op_tools
