#include "timing/call_timer.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tensor/device_guard.h"

namespace op_tools {

TimedThread::TimedThread() : number(static_cast<uint32_t>(syscall(SYS_gettid))) {}

TimedThread& TimedThread::current() {
  thread_local TimedThread thread;
  return thread;
}

void CallDevices::add_other(c10::Device device) {
  if (device.is_meta()) return;
  device = with_index(device);
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) devices_.push_back(device);
}

CallTimer::CallTimer(TimeMode mode, DeviceClock& clock, const void* owner, TimedThread& thread)
    : mode_(mode), clock_(clock), owner_(owner), thread_(thread), on_thread_(thread.number) {}

CallTimer::~CallTimer() {
  // On another thread, its own may be gone.
  if (runs_ && &TimedThread::current() == &thread_ && thread_.number == on_thread_) take_off();
  if (!devices_.empty()) {
    clock_.give_back(devices_.first(), first_);
    clock_.give_back(devices_.first(), last_);
  }
}

void CallTimer::start(const CallDevices& devices) {
  devices_ = devices;
  for (TimedThread::Open& interval : thread_.open_) {
    if (interval.owner != owner_) continue;
    ++depth_;
    interval.has_inside = true;
  }
  number_ = ++thread_.last_number_;
  thread_.open_.push_back({number_, owner_, false});
  runs_ = true;
  if (!devices_.empty()) {
    if (mode_ == TimeMode::kEvent) first_ = clock_.mark(devices_.first());
    waits_ = mode_ == TimeMode::kSync || (mode_ == TimeMode::kEvent && !first_);
    if (waits_) wait();
  }
  start_ = thread_.clock.now();
}

void CallTimer::wait() const {
  for (const c10::Device device : devices_) wait_for_device(device);
}

void CallTimer::take_end() {
  if (waits_) wait();
  end_ = thread_.clock.now();
  if (first_) last_ = clock_.mark(devices_.first());
  take_off();
}

void CallTimer::take_off() {
  runs_ = false;
  std::vector<TimedThread::Open>& open = thread_.open_;
  for (size_t i = open.size(); i-- > 0;) {
    if (open[i].number != number_) continue;
    has_inside_ = open[i].has_inside;
    open.erase(open.begin() + static_cast<ptrdiff_t>(i), open.end());  // with those in it, whose ends never came
    return;
  }
}

void CallTimer::take_marks(DeviceClock::Mark* first, DeviceClock::Mark* last) {
  *first = std::exchange(first_, nullptr);
  *last = std::exchange(last_, nullptr);
}

}  // namespace op_tools
