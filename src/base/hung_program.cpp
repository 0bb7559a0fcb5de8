#include "base/hung_program.h"

#include <atomic>

namespace op_tools {
namespace {

std::atomic<bool> g_hangs{false};

}  // namespace

void set_program_hangs() {
  g_hangs.store(true, std::memory_order_relaxed);
}

bool program_hangs() {
  return g_hangs.load(std::memory_order_relaxed);
}

}  // namespace op_tools
