#include "hooks/op_table.h"

#include <c10/util/flat_hash_map.h>

#include <utility>

#include "base/fork_guard.h"
#include "hooks/op_traits.h"

namespace op_tools::interceptor {
namespace {

bool has_composite_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// No backend runs it by a kernel of its own. Nested, sparse and meta tensors, whose kernels may be others, do not
// count.
bool is_composite(const c10::OperatorHandle& op) {
  if (!has_composite_kernel(op)) return false;
  static const c10::DispatchKeySet kOfBackends = c10::DispatchKeySet(c10::DispatchKey::Dense) |
                                                 c10::DispatchKeySet(c10::DispatchKey::AutogradFunctionality) |
                                                 c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask)
                                                     .remove_backend(c10::BackendComponent::MetaBit);
  return !op.hasKernelForAnyDispatchKey(kOfBackends);
}

}  // namespace

bool is_registered(const Op& op) {
  return c10::Dispatcher::singleton().findSchema(op.operator_name).has_value();
}

struct OpTable::Index : ska::flat_hash_map<const c10::OperatorName*, Op*> {
  uint64_t changes = 0;  // that it knows of
};

class OpTable::CountRegistrations final : public c10::OpRegistrationListener {
  // Called under the dispatcher's lock: nothing but counting is safe here.
  void onOperatorRegistered(const c10::OperatorHandle&) override { changes_.fetch_add(1, std::memory_order_release); }
  void onOperatorDeregistered(const c10::OperatorHandle&) override { changes_.fetch_add(1, std::memory_order_release); }
};

c10::RegistrationHandleRAII OpTable::listen() {
  return c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<CountRegistrations>());
}

OpTable::OpTable() = default;

OpTable& OpTable::get() {
  static OpTable* table = [] {
    keep_free_in_children([]() -> std::mutex& { return get().mutex; });
    return new OpTable;  // leaked: kernels may run while the process exits
  }();
  return *table;
}

Op& OpTable::find(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  const Index* index = index_.load(std::memory_order_acquire);
  if (index) {
    const auto entry = index->find(&name);
    if (entry != index->end() && is_it(*index, *entry->second, name)) return *entry->second;
  }
  std::lock_guard<std::mutex> lock(mutex);
  refresh_locked();
  auto& fresh = *index_.load(std::memory_order_relaxed);
  const auto entry = fresh.find(&name);
  if (entry != fresh.end() && entry->second->operator_name == name) return *entry->second;
  return add_locked(handle);
}

void OpTable::refresh_locked() {
  const uint64_t now = changes();
  const Index* const old = index_.load(std::memory_order_relaxed);
  if (old && now == old->changes) return;
  auto next = old ? std::make_unique<Index>(*old) : std::make_unique<Index>();
  next->changes = now;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findOp(name);
    if (!handle || !handle->hasSchema()) continue;
    const auto entry = next->find(&handle->operator_name());
    if (entry == next->end() || entry->second->operator_name != name)
      (*next)[&handle->operator_name()] = &make(*handle);
  }
  publish(std::move(next));
}

void OpTable::refresh_composites_locked() {
  for (const auto& [op, handle] : may_be_composite_) op->composite = is_composite(handle);
}

// An address is used again only after its operator was deregistered, which is counted.
bool OpTable::is_it(const Index& index, const Op& op, const c10::OperatorName& name) {
  return changes() == index.changes || op.operator_name == name;
}

// The same entry for an operator that is registered again.
Op& OpTable::make(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  Op*& op = by_name_[name];
  if (op) return *op;
  std::string text = name.name;
  if (!name.overload_name.empty()) text.append(".").append(name.overload_name);
  op = &ops_.emplace_back(name, std::move(text), is_composite(handle), ops_.size(), makes_variable(handle));
  if (has_composite_kernel(handle) && name.getNamespace() == "aten") may_be_composite_.emplace_back(op, handle);
  return *op;
}

Op& OpTable::add_locked(const c10::OperatorHandle& handle) {
  auto next = std::make_unique<Index>(*index_.load(std::memory_order_relaxed));
  Op& op = make(handle);
  (*next)[&handle.operator_name()] = &op;
  publish(std::move(next));
  return op;
}

void OpTable::publish(std::unique_ptr<Index> next) {
  index_.store(next.get(), std::memory_order_release);
  old_indexes_.push_back(std::move(next));
}

}  // namespace op_tools::interceptor
