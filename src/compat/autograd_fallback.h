#pragma once

// Autograd's part for operators of a program that have no gradient of their own, on a device of a vendor's kind.
// Gap: torch itself registers it for PrivateUse1 after 2.7. Before, such an operator fails on that device. Once, when
// the device is registered.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace op_tools::compat {

inline void register_autograd_fallback() {
  constexpr auto kKey = c10::DispatchKey::AutogradPrivateUse1;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey)) return;
  // Never destroyed: that would take the fallback out again.
  static auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);  // NOLINT
  library->fallback(torch::autograd::basicAutogradNotImplementedFallback());
}

}  // namespace op_tools::compat
