#include "base/stop_program.h"

#include <utility>

#include "base/host.h"

namespace op_tools {
namespace {

// Owned. A plain pointer: kernels may run while the thread's objects are destroyed.
thread_local std::exception_ptr* tl_held = nullptr;

}  // namespace

std::atomic<int> g_held{0};

bool hold_for_program(const std::exception& caught) noexcept {
  if (!host().is_of_program(caught)) return false;
  if (tl_held) return true;
  tl_held = new std::exception_ptr(std::current_exception());
  g_held.fetch_add(1);
  return true;
}

std::exception_ptr take_held_slow() noexcept {
  if (!tl_held) return nullptr;
  const std::unique_ptr<std::exception_ptr> held(std::exchange(tl_held, nullptr));
  g_held.fetch_sub(1);
  return *held;
}

}  // namespace op_tools
