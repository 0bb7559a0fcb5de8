#include "base/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace op_tools {
namespace {

std::atomic<uint64_t> g_forks{0};  // that lead here, since the first question

uint64_t forks() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1); });
  static_cast<void>(watched);
  return g_forks.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : forks_(forks()) {}

bool ForkGuard::in_child() const {
  return forks() != forks_;
}

}  // namespace op_tools
