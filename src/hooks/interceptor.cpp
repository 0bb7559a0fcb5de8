#include "hooks/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/looked_up.h"
#include "hooks/chain.h"
#include "hooks/current_chain.h"
#include "hooks/dispatcher_frame.h"
#include "hooks/module_path.h"
#include "hooks/op_call.h"
#include "hooks/op_table.h"
#include "tensor/internal_guard.h"
#include "tensor/ivalue.h"
#include "tensor/plain_tensor.h"

namespace op_tools::interceptor {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr DispatchKeySet kBelow = DispatchKeySet(DispatchKeySet::FULL_AFTER, kInterceptorKey);

size_t g_open = 0;  // OpenOps alive; under OpTable's mutex

// A kernel's answer for an operator that the chain does not take: the call goes on as if we were not there.
void pass(const OperatorHandle& op, DispatchKeySet below, Stack* stack) {
  op.redispatchBoxed(below, stack);
}

bool handled_below(const OperatorHandle& op, DispatchKeySet keys) {
  const DispatchKeySet autocast = keys & c10::autocast_dispatch_keyset;
  return !autocast.empty() && op.hasKernelForDispatchKey(autocast.highestPriorityTypeId());
}

// Autocast is on and has kernels for this device (a device may have none): a composite operator without a kernel of its
// own is cast inside. The operator's own key set does not show it: keys without a kernel are left out of it.
bool casts_inside(DispatchKeySet keys) {
  const DispatchKeySet autocast = c10::getAutocastRelatedKeySetFromBackend(keys.highestBackendKey()) -
                                  c10::impl::tls_local_dispatch_key_set().excluded_;
  if (autocast.empty()) return false;
  static const OperatorHandle known = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  return known.hasKernelForDispatchKey(autocast.highestPriorityTypeId());
}

// A cache of the operators that this thread called last, with the hooks that admit them: programs repeat a few
// operators.
class LastOps {
 public:
  struct Found {
    Op* op;
    uint32_t mask;  // of the chain's hooks; 0 without a chain
  };

  Found find(const OperatorHandle& handle, const Chain* chain) {
    const c10::OperatorName* const name = &handle.operator_name();
    const uint64_t number = chain ? chain->number : 0;
    const uint64_t changes = OpTable::changes();
    Slot& slot = slots_[reinterpret_cast<uintptr_t>(name) / kSpread % kSlots];
    if (slot.name != name || slot.chain != number || slot.changes != changes) {
      Op& op = OpTable::get().find(handle);
      slot = {name, number, changes, {&op, chain ? chain->mask_of_op(op.index, op.name, op.composite) : 0}};
    }
    return slot.op_and_mask;
  }

 private:
  static constexpr size_t kSlots = 256;
  static constexpr size_t kSpread = 64;  // names lie in entries of the dispatcher, some KB each
  struct Slot {
    const c10::OperatorName* name;
    uint64_t chain, changes;
    Found op_and_mask;
  };
  Slot slots_[kSlots];  // zero: nothing is known
};

// In a single place: each thread-local variable of a library is a call to find it.
struct ThisThread {
  uint64_t entries;
  AtenWatch* watch;
  Detour* detour;
  bool passes;  // a call of the program goes past us now, to come again below: no hook has it
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

class Passes {
 public:
  Passes(ThisThread& mine, bool passes) : mine_(mine), outer_(mine.passes) { mine.passes = passes; }
  ~Passes() { mine_.passes = outer_; }
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

 private:
  ThisThread& mine_;
  const bool outer_;
};

// May tensors of a compiler or an exporter come here? Those of Python go to its kernels first, unless the thread
// excludes its key, and asking each tensor of each call costs 50 ns.
bool may_trace(DispatchKeySet keys, DispatchKeySet excluded) {
  constexpr DispatchKeySet kTracing({DispatchKey::Python, DispatchKey::Functionalize});
  return !(excluded & kTracing).empty() || keys.has(DispatchKey::Functionalize);
}

// A call of a compiler or an exporter.
bool any_of_trace(const OperatorHandle& op, const Stack& stack) {
  const auto is_one = [](const at::Tensor& tensor) { return tensor.defined() && is_of_trace(tensor); };
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    if (value.isTensor()) return is_one(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorList();
    return std::any_of(list.begin(), list.end(), [&](const at::Tensor& tensor) { return is_one(tensor); });
  });
}

// `covered`: a watch already notes this call as a whole and no chain wants it, so inner calls need not come here.
void through_chain(const OperatorHandle& handle, DispatchKeySet keys, Stack* stack, ThisThread& mine, bool covered) {
  const DispatchKeySet below = keys & kBelow;
  Detour* detour = mine.detour;
  if (!mine.scopes) mine.find();
  const CurrentChain current(Level::kAten, *mine.scopes);
  const Chain* const chain = detour && detour->inside_call ? nullptr : current.get();
  if (!chain && !detour) {
    if (!covered) {
      set_intercepting(false);  // no scope is on for this thread any more (AllThreads in current_chain.cpp)
      return pass(handle, below, stack);
    }
    c10::impl::ExcludeDispatchKeyGuard guard(kInterceptorKey);
    return pass(handle, below, stack);
  }
  if (handled_below(handle, keys)) return pass(handle, below, stack);
  const auto [known, mask] = mine.last_ops.find(handle, chain);
  Op& op = *known;
  if (detour && ((op.composite && casts_inside(keys)) || !detour->takes(handle))) detour = nullptr;
  if (mask == 0 && !detour) return pass(handle, below, stack);
  if (may_trace(keys, mine.keys->excluded()) && any_of_trace(handle, *stack)) return pass(handle, below, stack);
  const GuardedState thread(*mine.autograd, *mine.keys);
  const ExcludedKeys unseen(thread, DispatchKeySet(kInterceptorKey));
  const Passes hidden(mine, false);
  DispatcherFrame frame(handle, below, *stack, detour);
  OpCall call(next_call_id(), Level::kAten, Phase::kForward, op.name, frame, thread);
  call.op = &handle;
  frame.begin(call);
  if (mask == 0) return frame.proceed();
  chain->run(mask, call);
}

}  // namespace

// Marks an outermost operator of a watched torch-level call.
class WatchedOp {
 public:
  WatchedOp(AtenWatch& watch, const OperatorHandle& op, const Stack& stack) : watch_(watch) {
    watch_.inside_ = true;
    if (watch_.count_++ > 0) return;
    noting([&] {
      const Op& known = OpTable::get().find(op);
      if (known.factory) {  // its result must not be held
        watch_.count_ = 2;
        return;
      }
      const auto& arguments = op.schema().arguments();
      const size_t first = stack.size() - arguments.size();
      Values values;
      values.reserve(arguments.size());
      for (size_t i = 0; i < arguments.size(); ++i) {
        values.push_back(to_value(stack[first + i], *arguments[i].real_type()));
      }
      watch_.name_ = known.name;
      watch_.args_ = make_tuple(std::move(values));
    });
  }
  ~WatchedOp() { watch_.inside_ = false; }
  WatchedOp(const WatchedOp&) = delete;
  WatchedOp& operator=(const WatchedOp&) = delete;

  void returned(const OperatorHandle& op, const Stack& stack) {
    if (watch_.count_ != 1) return;
    noting([&] {
      watch_.returned_ = returned_value(op, stack);
      watch_.has_effect_ = op.schema().is_mutable() || op.schema().returns().empty();
    });
  }

  static bool running(const AtenWatch& watch) { return watch.inside_; }

 private:
  // A failure of ours must not fail the user's operator: the call then counts as several operators.
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

// A factory of meta tensors: only its arguments say so.
bool makes_meta(const OperatorHandle& op, DispatchKeySet keys, const Stack& stack) {
  if (!keys.has(DispatchKey::BackendSelect)) return false;
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::IValue& value) { return value.isDevice() && value.toDevice().is_meta(); });
}

// The only kernel. Every operator that torch dispatches on an intercepting thread comes here unless the filters left it
// out.
void intercept(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  ThisThread& mine = looked_up_once(tl);
  ++mine.entries;
  const bool is_meta = keys.has_backend(c10::BackendComponent::MetaBit) || makes_meta(op, keys, *stack);
  if (is_meta || keys.has_any(kPassThroughKeys)) {
    const Passes seen_below(mine, !is_meta);
    const PassedCall nodes(c10::toString(op.operator_name()));
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
    static auto* const registrations = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
    registrations->push_back(OpTable::listen());
    registrations->push_back(dispatcher.registerFallback(
        kInterceptorKey, c10::KernelFunction::makeFromBoxedFunction<&intercept>(), "op_tools interceptor"));
  });
}

InsidePythonHandler::InsidePythonHandler()
    // The calls of a FakeTensorMode are operators on meta tensors, and factories of them.
    : sees_(tl.passes && c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey) && !computes_shapes_only()),
      passes_(tl.passes) {
  tl.passes = false;
  if (sees_) c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, false);
}

InsidePythonHandler::~InsidePythonHandler() {
  tl.passes = passes_;
  if (sees_) c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, true);
}

OpenOps::OpenOps(const std::function<bool(std::string_view, bool)>& wants) {
  OpTable& table = OpTable::get();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.refresh_locked();
  table.refresh_composites_locked();
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

namespace {
bool is_needed() {
  return tl.watch != nullptr || tl.detour != nullptr || CurrentChain(Level::kAten).get() != nullptr;
}
}  // namespace

AtenWatch::AtenWatch() : outer_(tl.watch), was_intercepting_(c10::impl::tls_is_dispatch_key_included(kInterceptorKey)) {
  tl.watch = this;
  set_intercepting(true);
}

AtenWatch::~AtenWatch() {
  tl.watch = outer_;
  // A scope may have been left inside the call: then the thread stays disarmed.
  set_intercepting(was_intercepting_ && is_needed());
}

Detour::Detour(Takes takes, Execute execute)
    : takes(std::move(takes)),
      execute(std::move(execute)),
      inside_call(c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)),
      outer_(tl.detour),
      was_intercepting_(c10::impl::tls_is_dispatch_key_included(kInterceptorKey)) {
  tl.detour = this;
  set_intercepting(true);
  if (inside_call) c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, false);
}

Detour::~Detour() {
  tl.detour = outer_;
  if (inside_call) c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, true);
  set_intercepting(was_intercepting_ && is_needed());
}

namespace {

// The torch-level call gave its caller the operator's results: the same tensors, or equal plain values. A call
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
  // x.data = y asks an operator a question, and does the rest itself.
  if (result.is<None>() && !has_effect_) return {};
  return make_tuple({name_, args_});
}

std::vector<KnownOp> known_ops() {
  OpTable& table = OpTable::get();
  std::vector<KnownOp> known;
  {
    std::lock_guard<std::mutex> lock(table.mutex);
    table.refresh_locked();
    table.refresh_composites_locked();
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
