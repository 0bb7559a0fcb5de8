// A thread that asks the black box every now and then how the process gets on (stall_reports.h). It takes no lock
// that the program's threads hold, and stops with its owner. Not alive in a forked child.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace op_tools {

class StallWatch {
 public:
  // Calls `check` every `interval` until it is destroyed.
  StallWatch(std::chrono::milliseconds interval, std::function<void()> check);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace op_tools
