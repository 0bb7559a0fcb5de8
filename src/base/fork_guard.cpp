#include "base/fork_guard.h"

namespace op_tools {

std::atomic<uint64_t> ForkGuard::g_forks{0};

ForkGuard::ForkGuard() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1); });
  static_cast<void>(watched);
  forks_ = g_forks.load(std::memory_order_relaxed);
}

}  // namespace op_tools
