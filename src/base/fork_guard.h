// The process that made it. A forked child has none of its parent's threads and finds locks as they were at that
// moment: what belongs to those has to be left alone there. Cheaper to ask than getpid(), which calls the system each
// time.
#pragma once

#include <atomic>
#include <cstdint>

namespace op_tools {

class ForkGuard {
 public:
  ForkGuard();
  // This process was forked from the one that made the guard.
  bool in_child() const { return g_forks.load(std::memory_order_relaxed) != forks_; }

 private:
  static std::atomic<uint64_t> g_forks;  // that lead here, since the first guard
  uint64_t forks_;
};

}  // namespace op_tools
