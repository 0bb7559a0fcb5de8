#include "hooks/failed_backward.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace op_tools {
namespace {

std::atomic<int> g_waiting{0};
std::atomic<bool> g_any{false};  // failures are noted: without it a call that nothing failed in would take the lock

struct Noted {
  std::mutex mutex;
  std::condition_variable more;
  std::vector<FailedBackward> failures;
};

Noted& noted() {
  static Noted* const all = new Noted;  // leaked: passes may be freed until the process ends
  return *all;
}

}  // namespace

void note_failed_backward(FailedBackward report) {
  if (g_waiting.load() == 0) return;
  Noted& all = noted();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    all.failures.push_back(std::move(report));
    g_any = true;
  }
  all.more.notify_all();
}

FailedBackwards::FailedBackwards() {
  g_waiting.fetch_add(1);
}

FailedBackwards::~FailedBackwards() {
  if (g_waiting.fetch_sub(1) == 1 && g_any.load()) take();
}

std::vector<FailedBackward> FailedBackwards::take(std::chrono::milliseconds most) {
  Noted& all = noted();
  std::unique_lock<std::mutex> lock(all.mutex);
  // A wait with a limit of zero is none: the kernel rounds it up to its timer slack of 50 us.
  if (most.count() > 0) all.more.wait_for(lock, most, [&] { return !all.failures.empty(); });
  g_any = false;
  return std::exchange(all.failures, {});
}

}  // namespace op_tools
