#include "hooks/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "hooks/chain.h"
#include "hooks/error.h"
#include "hooks/internal_guard.h"
#include "hooks/ivalue.h"
#include "hooks/op_call.h"
#include "hooks/scope.h"

namespace op_tools::interceptor {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

// A call with one of these keys is on its way through functorch, a subclass, a dispatch mode or functionalisation: it
// is met again below, with the tensors that really hold data.
constexpr DispatchKeySet kPassThrough =
    DispatchKeySet({DispatchKey::Python, DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerFrontMode,
                    DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchBatched,
                    DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchVmapMode});
constexpr DispatchKeySet kBelow = DispatchKeySet(DispatchKeySet::FULL_AFTER, kInterceptorKey);

// No handle of torch's in it: one dangles when a library is unloaded that registered the operator.
struct Op {
  c10::OperatorName operator_name;  // a copy: its address in the dispatcher may be reused
  std::string name;                 // aten::add.Tensor
  bool composite;
  size_t index;
  int wanted = 0;                                       // by so many OpenOps
  std::optional<c10::RegistrationHandleRAII> passes{};  // holds a fallthrough: the kernel is not entered
};

bool is_registered(const Op& op) {
  return c10::Dispatcher::singleton().findSchema(op.operator_name).has_value();
}

std::atomic<uint64_t> g_known_changes{0};

class CountRegistrations final : public c10::OpRegistrationListener {
  // Called under the dispatcher's lock: nothing but counting is safe here.
  void onOperatorRegistered(const OperatorHandle&) override { g_known_changes.fetch_add(1, std::memory_order_release); }
  void onOperatorDeregistered(const OperatorHandle&) override {
    g_known_changes.fetch_add(1, std::memory_order_release);
  }
};

// All operators by the address of their name in the dispatcher, which is stable while the operator lives. Readers take
// the current index without a lock; writers build a new one. Old indexes are kept: they are small and rarely made.
class OpTable {
 public:
  static OpTable& get() {
    static OpTable* table = new OpTable;  // leaked: kernels may run while the process exits
    return *table;
  }

  Op& find(const OperatorHandle& handle) {
    const c10::OperatorName& name = handle.operator_name();
    const Index* index = index_.load(std::memory_order_acquire);
    if (index) {
      const auto found = index->find(&name);
      if (found != index->end() && is_it(*index, *found->second, name)) return *found->second;
    }
    std::lock_guard<std::mutex> lock(mutex);
    refresh_locked();
    auto& fresh = *index_.load(std::memory_order_relaxed);
    const auto found = fresh.find(&name);
    if (found != fresh.end() && found->second->operator_name == name) return *found->second;
    return add_locked(handle);
  }

  // Learns the operators that were registered since the last time. Asking the dispatcher takes its lock.
  void refresh_locked() {
    const uint64_t changes = g_known_changes.load(std::memory_order_acquire);
    const Index* const old = index_.load(std::memory_order_relaxed);
    if (old && changes == old->changes) return;
    auto next = old ? std::make_unique<Index>(*old) : std::make_unique<Index>();
    next->changes = changes;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto handle = c10::Dispatcher::singleton().findOp(name);
      if (!handle || !handle->hasSchema()) continue;
      const auto found = next->find(&handle->operator_name());
      if (found == next->end() || found->second->operator_name != name)
        (*next)[&handle->operator_name()] = &make(*handle);
    }
    publish(std::move(next));
  }

  std::deque<Op>& ops_locked() { return ops_; }

  std::mutex mutex;
  std::vector<c10::RegistrationHandleRAII> registrations;  // of kernel and listener, for the life of the process

 private:
  struct Index : ska::flat_hash_map<const c10::OperatorName*, Op*> {
    uint64_t changes = 0;  // that it knows of
  };

  // An address is used again only after its operator was deregistered, which is counted.
  static bool is_it(const Index& index, const Op& op, const c10::OperatorName& name) {
    return g_known_changes.load(std::memory_order_acquire) == index.changes || op.operator_name == name;
  }

  // The same one for an operator that is registered again.
  Op& make(const OperatorHandle& handle) {
    const c10::OperatorName& name = handle.operator_name();
    Op*& op = by_name_[name];
    if (op) return *op;
    std::string text = name.name;
    if (!name.overload_name.empty()) text.append(".").append(name.overload_name);
    ops_.push_back(
        Op{name, std::move(text), handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd), ops_.size()});
    op = &ops_.back();
    return *op;
  }

  Op& add_locked(const OperatorHandle& handle) {
    auto next = std::make_unique<Index>(*index_.load(std::memory_order_relaxed));
    Op& op = make(handle);
    (*next)[&handle.operator_name()] = &op;
    publish(std::move(next));
    return op;
  }

  void publish(std::unique_ptr<Index> next) {
    index_.store(next.get(), std::memory_order_release);
    kept_.push_back(std::move(next));
  }

  std::deque<Op> ops_;  // stable addresses
  std::unordered_map<c10::OperatorName, Op*> by_name_;
  std::atomic<const Index*> index_{nullptr};
  std::vector<std::unique_ptr<const Index>> kept_;
};

size_t g_open = 0;  // OpenOps alive; under OpTable's mutex

c10::IValue replaced(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& replace) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(replace(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? replace(tensor) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(replace(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

void visit_tensors(const c10::IValue& value, Frame::Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

Value returned_value(const OperatorHandle& op, const Stack& stack) {
  const auto& returns = op.schema().returns();
  const size_t first = stack.size() - returns.size();
  if (returns.empty()) return {};
  if (returns.size() == 1) return to_value(stack[first], *returns[0].real_type());
  Values values;
  values.reserve(returns.size());
  for (size_t i = 0; i < returns.size(); ++i) values.push_back(to_value(stack[first + i], *returns[i].real_type()));
  return make_tuple(std::move(values));
}

class DispatcherRunner final : public OpRunner {
 public:
  DispatcherRunner(const OperatorHandle& op, const c10::KernelFunction* kernel) : op_(op), kernel_(kernel) {}

  Value run(const Value& args, const Value& kwargs) const override {
    const Values& positional = *sequence_items(args);
    Stack stack;
    size_t next = 0;
    for (const c10::Argument& argument : op_.schema().arguments()) {
      const Value* value = argument.kwarg_only()      ? find_key(kwargs, argument.name())
                           : next < positional.size() ? &positional[next++]
                                                      : nullptr;
      std::string why = "argument '" + argument.name() + "' is missing";
      c10::IValue bound;
      if (!value || !to_ivalue(*value, argument, &bound, &why, Binding::kDispatcher)) {
        throw Error(op_.operator_name().name + " cannot be run again: " + why);
      }
      stack.push_back(std::move(bound));
    }
    const c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
    if (kernel_) {
      kernel_->callBoxed(op_, DispatchKeySet(), &stack);
    } else {
      op_.callBoxed(&stack);
    }
    return returned_value(op_, stack);
  }

 private:
  const OperatorHandle op_;
  const c10::KernelFunction* const kernel_;  // in place of torch's
};

// Arguments on top of the stack before the call, returns on top of it after.
class DispatcherFrame final : public OperatorFrame {
 public:
  // `detour` runs the operator in place of torch, unless an executor of the aten level does.
  DispatcherFrame(const OperatorHandle& op, DispatchKeySet below, Stack& stack, Detour* detour)
      : op_(op), below_(below), stack_(stack), first_(stack.size() - op.schema().arguments().size()), detour_(detour) {}

  void begin(OpCall& call) { call_ = &call; }

  Value args() override {
    Values values;
    each_argument([&](const c10::Argument& argument, c10::IValue& value) {
      if (!argument.kwarg_only()) values.push_back(to_value(value, *argument.real_type()));
    });
    return make_tuple(std::move(values));
  }

  Value kwargs() override {
    std::vector<std::pair<Value, Value>> items;
    each_argument([&](const c10::Argument& argument, c10::IValue& value) {
      if (argument.kwarg_only()) items.emplace_back(argument.name(), to_value(value, *argument.real_type()));
    });
    return make_dict(std::move(items));
  }

  Value result() override { return returned_value(op_, stack_); }
  void visit_inputs(Visit visit) override {
    // Positional first, then keyword-only: the schema's order is that of for_each_tensor over (args, kwargs).
    each_argument([&](const c10::Argument&, const c10::IValue& value) { visit_tensors(value, visit); });
  }
  void visit_result(Visit visit) override {
    for (size_t i = stack_.size() - op_.schema().returns().size(); i < stack_.size(); ++i)
      visit_tensors(stack_[i], visit);
  }
  std::optional<c10::Device> named_device() override {
    std::optional<c10::Device> named;
    each_argument([&](const c10::Argument&, const c10::IValue& value) {
      if (value.isDevice()) named = value.toDevice();
    });
    return named;
  }
  void proceed() override {
    if (Detour* const detour = std::exchange(detour_, nullptr)) return detour->execute(*call_);
    ran_ = true;
    op_.redispatchBoxed(below_, &stack_);
  }

  std::vector<c10::IValue> arguments() const override {
    if (ran_) gone();
    return {stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end()};
  }
  void set_returns(std::vector<c10::IValue> returns) override {
    ran_ = true;
    replace_top(std::move(returns));
  }
  void set_arguments(std::vector<c10::IValue> arguments) override {
    ran_ = false;
    replace_top(std::move(arguments));
  }
  std::shared_ptr<const OpRunner> runner() override { return runner_of(op_); }

  void replace_inputs(const std::function<at::Tensor(const at::Tensor&)>& replace) override {
    each_argument([&](const c10::Argument&, c10::IValue& value) { value = replaced(value, replace); });
  }

  void replace_result(const std::function<at::Tensor(const at::Tensor&)>& replace) override {
    const size_t first = stack_.size() - op_.schema().returns().size();
    for (size_t i = first; i < stack_.size(); ++i) stack_[i] = replaced(stack_[i], replace);
  }

 private:
  template <class Visit>
  void each_argument(Visit&& visit) {
    if (ran_) gone();
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) visit(arguments[i], stack_[first_ + i]);
  }

  [[noreturn]] static void gone() {
    throw Error("the arguments are gone after the operator ran: a hook asks for them in before()");
  }
  void replace_top(std::vector<c10::IValue> values) {
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    std::move(values.begin(), values.end(), std::back_inserter(stack_));
  }

  const OperatorHandle& op_;
  const DispatchKeySet below_;
  Stack& stack_;
  const size_t first_;  // of the arguments on the stack
  Detour* detour_;
  OpCall* call_ = nullptr;
  bool ran_ = false;  // the stack holds what the operator returned
};

// A kernel's answer for an operator that the chain does not take: the call goes on as if we were not there.
void pass(const OperatorHandle& op, DispatchKeySet below, Stack* stack) {
  op.redispatchBoxed(below, stack);
}

bool met_again_below(const OperatorHandle& op, DispatchKeySet keys) {
  const DispatchKeySet autocast = keys & c10::autocast_dispatch_keyset;
  return !autocast.empty() && op.hasKernelForDispatchKey(autocast.highestPriorityTypeId());
}

// Autocast is on and has kernels for this device (a device may have none): a composite operator without a kernel of its
// own is cast inside. The operator's own key set does not tell, keys without a kernel are left out of it.
bool casts_inside(DispatchKeySet keys) {
  const DispatchKeySet autocast = c10::getAutocastRelatedKeySetFromBackend(keys.highestBackendKey()) -
                                  c10::impl::tls_local_dispatch_key_set().excluded_;
  if (autocast.empty()) return false;
  static const OperatorHandle known = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  return known.hasKernelForDispatchKey(autocast.highestPriorityTypeId());
}

// The operators that this thread met last, with the hooks that take them: the same few come over and over.
class LastOps {
 public:
  struct Found {
    Op* op;
    uint32_t mask;  // of the chain's hooks; 0 without a chain
  };

  Found find(const OperatorHandle& handle, const Chain* chain) {
    const c10::OperatorName* const name = &handle.operator_name();
    const uint64_t number = chain ? chain->number : 0;
    const uint64_t changes = g_known_changes.load(std::memory_order_acquire);
    Slot& slot = slots_[reinterpret_cast<uintptr_t>(name) / kSpread % kSlots];
    if (slot.name != name || slot.chain != number || slot.changes != changes) {
      Op& op = OpTable::get().find(handle);
      slot = {name, number, changes, {&op, chain ? chain->mask_of_op(op.index, op.name, op.composite) : 0}};
    }
    return slot.found;
  }

 private:
  static constexpr size_t kSlots = 256;
  static constexpr size_t kSpread = 64;  // names lie in entries of the dispatcher, some KB each
  struct Slot {
    const c10::OperatorName* name;
    uint64_t chain, changes;
    Found found;
  };
  Slot slots_[kSlots];  // zero: nothing is known
};

// In one place: each thread-local variable of a library is a call to find it.
struct ThisThread {
  uint64_t entries;
  AtenWatch* watch;
  Detour* detour;
  LastOps last_ops;
  // Of the same thread; nullptr until it is found.
  CurrentChain::Thread* scopes;
  c10::AutogradState* autograd;
  c10::impl::PODLocalDispatchKeySet* keys;

  void find() {
    scopes = &CurrentChain::this_thread();
    autograd = &c10::AutogradState::get_tls_state();
    keys = &c10::impl::raw_local_dispatch_key_set;
  }
};
thread_local ThisThread tl = {};

// `covered`: a watch already notes this call as a whole and no chain wants it, so inner calls need not come here.
void through_chain(const OperatorHandle& handle, DispatchKeySet keys, Stack* stack, ThisThread& mine, bool covered) {
  const DispatchKeySet below = keys & kBelow;
  Detour* detour = mine.detour;
  if (!mine.scopes) mine.find();
  const CurrentChain current(Level::kAten, *mine.scopes);
  const Chain* const chain = detour && detour->inside_call ? nullptr : current.get();
  if (!chain && !detour) {
    if (!covered) {
      arm(false);  // no scope is on for this thread any more (see EveryThread in scope.cpp)
      return pass(handle, below, stack);
    }
    c10::impl::ExcludeDispatchKeyGuard guard(kInterceptorKey);
    return pass(handle, below, stack);
  }
  if (met_again_below(handle, keys)) return pass(handle, below, stack);
  const auto [found, mask] = mine.last_ops.find(handle, chain);
  Op& op = *found;
  if (detour && ((op.composite && casts_inside(keys)) || !detour->takes(handle))) detour = nullptr;
  if (mask == 0 && !detour) return pass(handle, below, stack);
  const GuardedState thread(*mine.autograd, *mine.keys);
  const SkippedKeys unseen(thread, DispatchKeySet(kInterceptorKey));
  DispatcherFrame frame(handle, below, *stack, detour);
  OpCall call(next_call_id(), Level::kAten, Phase::kForward, op.name, frame, thread);
  call.op = &handle;
  frame.begin(call);
  if (mask == 0) return frame.proceed();
  chain->run(mask, call);
}

}  // namespace

// Marks one outermost operator of a watched torch-level call.
class WatchedOp {
 public:
  WatchedOp(AtenWatch& watch, const OperatorHandle& op, const Stack& stack) : watch_(watch) {
    watch_.inside_ = true;
    if (watch_.count_++ > 0) return;
    noting([&] {
      const auto& arguments = op.schema().arguments();
      const size_t first = stack.size() - arguments.size();
      Values values;
      values.reserve(arguments.size());
      for (size_t i = 0; i < arguments.size(); ++i) {
        values.push_back(to_value(stack[first + i], *arguments[i].real_type()));
      }
      watch_.name_ = OpTable::get().find(op).name;
      watch_.args_ = make_tuple(std::move(values));
    });
  }
  ~WatchedOp() { watch_.inside_ = false; }
  WatchedOp(const WatchedOp&) = delete;
  WatchedOp& operator=(const WatchedOp&) = delete;

  void returned(const OperatorHandle& op, const Stack& stack) {
    if (watch_.count_ == 1) noting([&] { watch_.returned_ = returned_value(op, stack); });
  }

  static bool running(const AtenWatch& watch) { return watch.inside_; }

 private:
  // A failure of ours must not become one of the user's operator: the call then counts as more than one operator.
  template <class Note>
  void noting(Note&& note) noexcept {
    try {
      InternalGuard guard;
      note();
    } catch (...) {
      watch_.count_ = 2;
    }
  }

  AtenWatch& watch_;
};

namespace {

// The one kernel. Everything that torch dispatches on an armed thread comes here unless its operator was left out.
void intercept(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  ThisThread& mine = tl;
  ++mine.entries;
  if (keys.has_any(kPassThrough) || keys.has_backend(c10::BackendComponent::MetaBit)) {
    return pass(op, keys & kBelow, stack);
  }
  AtenWatch* const watch = mine.watch;
  if (!watch || WatchedOp::running(*watch)) return through_chain(op, keys, stack, mine, watch != nullptr);
  WatchedOp watched(*watch, op, *stack);
  through_chain(op, keys, stack, mine, true);
  watched.returned(op, *stack);
}

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (dispatcher.hasBackendFallbackForDispatchKey(kInterceptorKey)) {
      throw Error(
          std::string("the dispatch key ") + c10::toString(kInterceptorKey) +
          ", on which op_tools intercepts operators, is taken by another library in this process; the aten level "
          "cannot be used beside it");
    }
    auto& kept = OpTable::get().registrations;
    kept.push_back(dispatcher.addRegistrationListener(std::make_unique<CountRegistrations>()));
    kept.push_back(dispatcher.registerFallback(
        kInterceptorKey, c10::KernelFunction::makeFromBoxedFunction<&intercept>(), "op_tools interceptor"));
  });
}

std::shared_ptr<const OpRunner> runner_of(const OperatorHandle& op, const c10::KernelFunction* kernel) {
  return std::make_shared<DispatcherRunner>(op, kernel);
}

OpenOps::OpenOps(const std::function<bool(std::string_view, bool)>& wants) {
  OpTable& table = OpTable::get();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.refresh_locked();
  auto& ops = table.ops_locked();
  wanted_.resize(ops.size());
  for (Op& op : ops) {
    if (!wants(op.name, op.composite)) continue;
    wanted_[op.index] = true;
    ++op.wanted;
    op.passes.reset();
  }
  if (g_open++ > 0) return;
  for (Op& op : ops) {
    if (op.wanted > 0 || op.passes || !is_registered(op)) continue;
    op.passes.emplace(c10::Dispatcher::singleton().registerImpl(op.operator_name, kInterceptorKey,
                                                                c10::KernelFunction::makeFallthrough(), std::nullopt,
                                                                nullptr, "op_tools: left out by the filters"));
  }
}

OpenOps::~OpenOps() {
  OpTable& table = OpTable::get();
  std::lock_guard<std::mutex> lock(table.mutex);
  for (Op& op : table.ops_locked()) {
    if (op.index < wanted_.size() && wanted_[op.index]) --op.wanted;
  }
  --g_open;
}

void arm(bool on) {
  c10::impl::tls_set_dispatch_key_included(kInterceptorKey, on);
}

namespace {
bool is_needed() {
  return tl.watch != nullptr || tl.detour != nullptr || CurrentChain(Level::kAten).get() != nullptr;
}
}  // namespace

AtenWatch::AtenWatch() : outer_(tl.watch), was_armed_(c10::impl::tls_is_dispatch_key_included(kInterceptorKey)) {
  tl.watch = this;
  arm(true);
}

AtenWatch::~AtenWatch() {
  tl.watch = outer_;
  // A scope may have been left inside the call: then the thread stays disarmed.
  arm(was_armed_ && is_needed());
}

Detour::Detour(Takes takes, Execute execute)
    : takes(std::move(takes)),
      execute(std::move(execute)),
      inside_call(c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)),
      outer_(tl.detour),
      was_armed_(c10::impl::tls_is_dispatch_key_included(kInterceptorKey)) {
  tl.detour = this;
  arm(true);
  if (inside_call) c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, false);
}

Detour::~Detour() {
  tl.detour = outer_;
  if (inside_call) c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, true);
  arm(was_armed_ && is_needed());
}

namespace {

// The torch-level call gave its caller what the operator returned: the same tensors, or equal plain values. A call
// that returns None (x[0] = 1), or an operator that does (_foreach_add_, whose Python form returns its list), is
// covered by the effect on the arguments.
bool same_result(const Value& operator_args, const Value& operator_result, const Value& call_result) {
  if (call_result.is<None>()) return true;
  const std::vector<at::Tensor> left = flatten_tensors(operator_result);
  if (operator_result.is<None>()) {
    const std::vector<at::Tensor> changed = flatten_tensors(operator_args);
    const std::vector<at::Tensor> returned = flatten_tensors(call_result);
    return !returned.empty() && std::all_of(returned.begin(), returned.end(), [&](const at::Tensor& tensor) {
      return std::any_of(changed.begin(), changed.end(),
                         [&](const at::Tensor& other) { return other.is_same(tensor); });
    });
  }
  const std::vector<at::Tensor> right = flatten_tensors(call_result);
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].unsafeGetTensorImpl() != right[i].unsafeGetTensorImpl()) return false;
  }
  if (!left.empty()) return true;
  if (const bool* flag = call_result.get_if<bool>()) {
    const bool* other = operator_result.get_if<bool>();
    return other && *other == *flag;
  }
  if (const int64_t* number = call_result.get_if<int64_t>()) {
    const int64_t* other = operator_result.get_if<int64_t>();
    return other && *other == *number;
  }
  if (const double* number = call_result.get_if<double>()) {
    const double* other = operator_result.get_if<double>();
    return other && (*other == *number || (*other != *other && *number != *number));
  }
  return false;
}

}  // namespace

Value AtenWatch::whole_call(const Value& result) const {
  if (count_ != 1 || !same_result(args_, returned_, result)) return {};
  return make_tuple({name_, args_});
}

std::vector<KnownOp> known_ops() {
  OpTable& table = OpTable::get();
  std::vector<KnownOp> known;
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    table.refresh_locked();
    for (const Op& op : table.ops_locked()) {
      if (is_registered(op)) known.push_back({op.name, op.composite});
    }
  }
  std::sort(known.begin(), known.end(), [](const KnownOp& a, const KnownOp& b) { return a.name < b.name; });
  return known;
}

uint64_t kernel_entries() {
  return tl.entries;
}

}  // namespace op_tools::interceptor
