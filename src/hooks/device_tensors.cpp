#include "hooks/device_tensors.h"

#include <ATen/core/Tensor.h>

#include <exception>

#include "base/stop_program.h"
#include "hooks/op_call.h"

namespace op_tools {
namespace {

std::atomic<bool> g_seen{false};

}  // namespace

void look_for_device_tensors() {
  g_seen.store(false);
  g_looks_for_device_tensors.store(true);
}

bool device_tensor_seen() {
  return g_seen.load();
}

void look_for_device_tensor(OpCall& call) noexcept {
  try {
    call.frame().visit_result([](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.device().is_cpu() || tensor.device().is_meta()) return;
      g_seen.store(true);
      g_looks_for_device_tensors.store(false, std::memory_order_relaxed);
    });
  } catch (const std::exception& error) {
    hold_for_program(error);  // an interrupt; what has no device that can be asked is on none
  } catch (...) {             // NOLINT(bugprone-empty-catch): as above
  }
}

}  // namespace op_tools
