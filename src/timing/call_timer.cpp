#include "timing/call_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace op_tools {
namespace {

struct Open {
  CallTimer* timer;
  const void* owner;
};
// A stretch whose end never came (its autograd node raised) stays until one below it ends or its timer dies.
thread_local std::vector<Open> tl_open;

// Takes the timer's stretch off, and those in it.
void close(const CallTimer* timer) {
  std::vector<Open>& open = tl_open;
  const auto mine = std::find_if(open.rbegin(), open.rend(), [&](const Open& one) { return one.timer == timer; });
  if (mine != open.rend()) open.erase(std::prev(mine.base()), open.end());
}

}  // namespace

void CallDevices::add(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return;
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) devices_.push_back(device);
}

CallTimer::CallTimer(TimeMode mode, DeviceClock& clock, const void* owner)
    : mode_(mode), clock_(clock), owner_(owner) {}

CallTimer::~CallTimer() {
  if (open_) close(this);
  if (!devices_.empty()) {
    clock_.give_back(devices_.first(), first_);
    clock_.give_back(devices_.first(), last_);
  }
}

void CallTimer::start(const CallDevices& devices) {
  devices_ = devices;
  std::vector<Open>& open = tl_open;
  for (const Open& one : open) {
    if (one.owner != owner_) continue;
    ++depth_;
    one.timer->has_inside_ = true;
  }
  open.push_back({this, owner_});
  open_ = true;
  if (!devices_.empty()) {
    if (mode_ == TimeMode::kEvent) first_ = clock_.mark(devices_.first());
    waits_ = mode_ == TimeMode::kSync || (mode_ == TimeMode::kEvent && !first_);
    if (waits_) wait();
  }
  start_ = clock_now();
}

void CallTimer::wait() const {
  for (const c10::Device device : devices_) wait_for_device(device);
}

void CallTimer::take_end() {
  if (waits_) wait();
  end_ = clock_now();
  if (first_) last_ = clock_.mark(devices_.first());
  close(this);
  open_ = false;
}

void CallTimer::take_marks(DeviceClock::Mark* first, DeviceClock::Mark* last) {
  *first = std::exchange(first_, nullptr);
  *last = std::exchange(last_, nullptr);
}

uint32_t thread_number() {
  thread_local const auto number = static_cast<uint32_t>(syscall(SYS_gettid));
  return number;
}

}  // namespace op_tools
