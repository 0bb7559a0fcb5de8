#include "hooks/call_ids.h"

#include "hooks/op_call.h"

namespace op_tools {

std::atomic<uint64_t> CallIds::taken_{1};

CallIds& CallIds::of_this_thread() {
  thread_local CallIds ids;
  return ids;
}

void CallIds::take_block() {
  constexpr uint64_t kBlock = 64;
  next_ = taken_.fetch_add(kBlock, std::memory_order_relaxed);
  end_ = next_ + kBlock;
}

uint64_t next_call_id() {
  return CallIds::of_this_thread().next();
}

}  // namespace op_tools
