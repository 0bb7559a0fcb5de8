// The process that made it. A forked child has none of its parent's threads and finds locks as they were at that
// moment: the state of those threads has to be left alone there. Cheaper to ask than getpid(), which calls the system
// each time.
#pragma once

#include <pthread.h>

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

// From now on no fork happens while another thread holds the mutex that `Get` gives, a lambda without captures: a
// child, which has only the thread that forked, finds it free. Call it once; nothing may be waited for with the mutex
// held.
template <class Get>
void keep_free_in_children(Get /*mutex*/) {
  pthread_atfork([] { Get()().lock(); }, [] { Get()().unlock(); }, [] { Get()().unlock(); });
}

}  // namespace op_tools
