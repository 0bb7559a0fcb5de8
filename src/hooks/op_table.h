// The operators that torch's dispatcher knows, numbered. Used by the interceptor alone.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace op_tools::interceptor {

// No handle of torch's in it: a handle dangles when a library is unloaded that registered the operator.
struct Op {
  Op(c10::OperatorName name_of_operator, std::string full_name, bool is_composite, size_t number, bool is_factory)
      : operator_name(std::move(name_of_operator)),
        name(std::move(full_name)),
        composite(is_composite),
        index(number),
        factory(is_factory) {}

  c10::OperatorName operator_name;  // a copy: its address in the dispatcher may be reused
  std::string name;                 // aten::add.Tensor
  // Made of other operators, on each backend: see refresh_composites_locked(). Written under the table's lock.
  std::atomic<bool> composite;
  size_t index;
  bool factory;                                         // see makes_variable()
  int wanted = 0;                                       // by this many OpenOps
  std::optional<c10::RegistrationHandleRAII> passes{};  // holds a fallthrough: the kernel is not entered
};

bool is_registered(const Op& op);

// All operators by the address of their name in the dispatcher, which is stable while the operator lives. Readers take
// the current index without a lock; writers build a new index. Old indexes are never freed: they are small and rarely
// made.
class OpTable {
 public:
  static OpTable& get();

  // Counts registrations in the dispatcher: a note by an operator's address is valid while this stays equal.
  static uint64_t changes() { return changes_.load(std::memory_order_acquire); }
  // Counts from here on, as long as the handle lives; once per process.
  static c10::RegistrationHandleRAII listen();

  Op& find(const c10::OperatorHandle& handle);

  // The rest is for who holds this.
  std::mutex mutex;
  // Learns the operators that were registered since the last time. Asking the dispatcher takes its lock.
  void refresh_locked();
  // A backend may get, and lose, a kernel of its own for an operator of torch's that is made of others elsewhere (a
  // vendor's linear).
  void refresh_composites_locked();
  std::deque<Op>& ops_locked() { return ops_; }

 private:
  struct Index;
  class CountRegistrations;

  OpTable();
  static bool is_it(const Index& index, const Op& op, const c10::OperatorName& name);
  Op& make(const c10::OperatorHandle& handle);
  Op& add_locked(const c10::OperatorHandle& handle);
  void publish(std::unique_ptr<Index> next);

  static inline std::atomic<uint64_t> changes_{0};
  std::deque<Op> ops_;  // stable addresses
  std::unordered_map<c10::OperatorName, Op*> by_name_;
  std::vector<std::pair<Op*, c10::OperatorHandle>> may_be_composite_;  // torch's own: these stay as long as the process
  std::atomic<const Index*> index_{nullptr};
  std::vector<std::unique_ptr<const Index>> old_indexes_;
};

}  // namespace op_tools::interceptor
