// While one of these is alive on a thread, what op_tools itself calls is nobody's business: neither interceptor meets
// it, autograd records nothing, autocast casts nothing, dispatch modes, functorch and the tracer don't see it.
// Round every hook call and every copy of ours. RAII, not movable, any thread.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace op_tools {

// The dispatch key that the aten level stands on: above autograd and autocast, below only the Python dispatcher and
// pre-dispatch tracing. Nothing in torch registers on it; this is the one place that names it.
inline constexpr c10::DispatchKey kInterceptorKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

class InternalGuard {
 public:
  InternalGuard() : excluded_(kHidden), grad_mode_(false) {}
  InternalGuard(const InternalGuard&) = delete;
  InternalGuard& operator=(const InternalGuard&) = delete;

 private:
  static constexpr c10::DispatchKeySet kHidden =
      c10::DispatchKeySet({kInterceptorKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                           c10::DispatchKey::PythonDispatcher, c10::DispatchKey::PreDispatch,
                           c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize,
                           c10::DispatchKey::Tracer}) |
      c10::autocast_dispatch_keyset | c10::autograd_dispatch_keyset_with_ADInplaceOrView;

  c10::impl::ExcludeDispatchKeyGuard excluded_;
  at::AutoGradMode grad_mode_;
};

}  // namespace op_tools
