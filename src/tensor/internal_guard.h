// Stands around everything that op_tools itself runs in the program's threads. While it lives, an operator call goes
// straight to the backend: past the interceptor, autograd, autocast, Python modes, functorch transforms, tracers and
// the profiler, and gives no warnings. The chain puts it around every hook. RAII, thread-local, nests.
//
// Tensors must be plain: a subclass, a functorch wrapper or a fake tensor has no backend of its
// own below these keys. A hook that wants autograd (to run a reference) makes its own keys.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>

#include "tensor/dispatch_keys.h"
#include "tensor/profiler.h"
#include "tensor/quiet.h"

namespace op_tools {

// Where this thread keeps the state that the guards change. Located once for all of a call, or once for all of a
// thread: each place is a call into a library of torch's.
struct GuardedState {
  GuardedState() : GuardedState(c10::AutogradState::get_tls_state(), c10::impl::raw_local_dispatch_key_set) {}
  GuardedState(c10::AutogradState& autograd, c10::impl::PODLocalDispatchKeySet& keys)
      : autograd(autograd), keys(keys) {}

  c10::AutogradState& autograd;
  c10::impl::PODLocalDispatchKeySet& keys;
  const bool is_profiled = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr;
};

// While an object lives, this thread's operators go past these keys.
class ExcludedKeys {
 public:
  ExcludedKeys(const GuardedState& state, c10::DispatchKeySet keys)
      : keys_(state.keys), excluded_(keys - keys_.excluded()) {
    keys_.set_excluded(keys_.excluded() | excluded_);
  }
  ~ExcludedKeys() { keys_.set_excluded(keys_.excluded() - excluded_); }
  ExcludedKeys(const ExcludedKeys&) = delete;
  ExcludedKeys& operator=(const ExcludedKeys&) = delete;

 private:
  c10::impl::PODLocalDispatchKeySet& keys_;  // this thread's
  const c10::DispatchKeySet excluded_;       // by this guard
};

class InternalGuard {
 public:
  InternalGuard() : InternalGuard(GuardedState()) {}
  explicit InternalGuard(const GuardedState& state)
      : autograd_(state.autograd), had_grad_(autograd_.get_grad_mode()), excluded_(state, kAboveBackendKeys) {
    autograd_.set_grad_mode(false);
    // A program's profile shows the program; the profiler also numbers a backward node by the first operator inside it.
    if (state.is_profiled) unseen_.emplace();
  }
  ~InternalGuard() { autograd_.set_grad_mode(had_grad_); }
  InternalGuard(const InternalGuard&) = delete;
  InternalGuard& operator=(const InternalGuard&) = delete;

 private:
  c10::AutogradState& autograd_;  // this thread's
  const bool had_grad_;
  const ExcludedKeys excluded_;
  const QuietOperators quiet_;
  std::optional<ProfilerPause> unseen_;  // only while a profiler is on: it rebuilds the thread's callbacks
};

}  // namespace op_tools
