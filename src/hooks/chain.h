// The chain: the way of an OpCall between its source and its end. Sources ask CurrentChain (current_chain.h) for
// the chain of this thread, mask_for() for the hooks that admit the operator, and run() for the call.
// A Chain is immutable and shared: entering or leaving a scope makes a new chain, calls in progress keep theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/gradients.h"
#include "base/export.h"
#include "base/options.h"
#include "hooks/call_items.h"
#include "hooks/hook.h"

namespace op_tools {

// A hook that is on, with its settings and its counters. Shared by the scope, the chains and pending backward calls.
struct ActiveHook {
  ActiveHook(std::shared_ptr<Hook> hook, ResolvedOptions options);

  // The hook wants this call now: not switched off by a failure, the step is among `steps`, not all on the CPU with
  // skip_cpu.
  bool accepts(OpCall& call) const { return !off.load(std::memory_order_relaxed) && (!asks_calls || asks(call)); }
  bool admits(std::string_view name, bool composite) const;
  void fail(std::string_view where, std::string_view why) noexcept;

  const std::shared_ptr<Hook> hook;
  const ResolvedOptions options;
  const Wants wants;
  const bool asks_calls;                   // some option takes more than a name to decide
  const std::unique_ptr<CallItems> items;  // where only listed calls are wanted
  std::atomic<bool> off{false};
  std::atomic<uint64_t> seen{0};
  mutable std::atomic<uint64_t> in_graph{0};  // calls left alone because they were recorded into a graph
  std::atomic<uint64_t> jagged{0};            // calls left alone because of a jagged nested tensor
  std::atomic<int64_t> step{0};
  std::atomic<bool> on_device{false};  // a call that it took part in gave a tensor elsewhere than on the host

  // The graphs of torch.compile in whose calls it took part. Any thread.
  void took_graph(std::string_view name);
  uint64_t graph_count() const;

 private:
  bool asks(OpCall& call) const;

  mutable std::mutex graphs_mutex_;
  std::set<std::string, std::less<>> graphs_;  // names
};

// While an object lives, this thread's calls are none of the program's (the reads of a tensor's repr): hooks do not see
// them, but executors run them.
class OP_TOOLS_API Unobserved {
 public:
  Unobserved();
  ~Unobserved();
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

  static bool is_on();  // in this thread
};

class OP_TOOLS_API Chain : public std::enable_shared_from_this<Chain> {
 public:
  static constexpr size_t kMaxHooks = 32;  // bits of a mask

  explicit Chain(std::vector<std::shared_ptr<ActiveHook>> hooks);
  const std::vector<std::shared_ptr<ActiveHook>>& hooks() const { return hooks_; }

  const uint64_t number;  // of this chain alone, from 1: a note by this number needs no reference to it

  // Which hooks admit an operator of this name: asks the filters, so sources cache the answer. `composite`: the op is
  // a CompositeImplicitAutograd operator, admitted only by a filter that names it.
  uint32_t mask_for(std::string_view name, bool composite = false) const;
  // The same for a dispatcher operator, which has a small index; cached, so that each filter is asked once.
  uint32_t mask_of_op(size_t op_index, std::string_view name, bool composite) const;
  // The hooks that take a graph of torch.compile as a call.
  uint32_t mask_for_graph(std::string_view name) const;
  bool wants(uint32_t mask, bool Wants::*need) const;  // a masked hook does

  void leave_jagged(uint32_t mask) const;  // counts a call that the masked hooks do not see
  CompiledGraphs compiled() const;         // of its hooks the last in the enumeration's order

  // Runs the call: observers, executor or operator, observers. Throws only the operator's (or executor's) exceptions.
  void run(uint32_t mask, OpCall& call) const;

  // The argument of a source for GradientCollector::after_call: runs backward of the call as a second OpCall through
  // the hooks that take part, whenever and on whatever thread it comes; keeps the chain, and states that hooks saved
  // for backward, alive until then.
  GradientCollector::OnBackward backward_of(OpCall& call) const;

 private:
  static constexpr size_t kOpSlots = 8192;  // torch has some 3,500 operators; later ones are asked each time

  class Run;

  void look_for_device_tensor(uint32_t asking, OpCall& call) const noexcept;

  std::vector<std::shared_ptr<ActiveHook>> hooks_;
  uint32_t innermost_ = 0;                             // mask
  uint32_t executors_ = 0;                             // mask
  uint32_t owns_gradients_ = 0;                        // mask: those that want copies of them
  uint32_t wants_failed_backward_ = 0;                 // mask
  mutable std::atomic<uint32_t> before_device_{0};     // mask: have seen no tensor on a device yet
  std::unique_ptr<std::atomic<uint64_t>[]> op_masks_;  // 0: not asked yet, else mask | kAsked
};

}  // namespace op_tools
