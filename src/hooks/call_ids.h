// Numbers for calls: process-wide, and a call that begins after another one, on whatever thread, has the higher one.
// Threads take them in blocks, so that counting alone costs no atomic addition: a thread goes on in its block for as
// long as nobody has taken another one since. Numbers of one thread alone have no gaps.
#pragma once

#include <atomic>
#include <cstdint>

namespace op_tools {

class CallIds {
 public:
  static CallIds& of_this_thread();  // for sources that remember it: finding it is a call

  uint64_t next() {
    // Whoever waited for a call of another thread sees the block that the call's number is of.
    if (next_ == end_ || taken_.load(std::memory_order_relaxed) != end_) take_block();
    return next_++;
  }

 private:
  void take_block();

  static std::atomic<uint64_t> taken_;  // the first number that is in no block
  uint64_t next_ = 0, end_ = 0;
};

}  // namespace op_tools
