#include "blackbox/stall_watch.h"

#include <utility>

namespace op_tools {

StallWatch::StallWatch(std::chrono::milliseconds interval, std::function<void()> check)
    : thread_([this, interval, check = std::move(check)] {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!changed_.wait_for(lock, interval, [this] { return ends_; })) {
          lock.unlock();
          check();
          lock.lock();
        }
      }) {}

StallWatch::~StallWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace op_tools
