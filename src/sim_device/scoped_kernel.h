// Lives while the device computes: calls inside go past autograd, autocast, modes, tools and the profiler.
#pragma once

#include <ATen/record_function.h>

#include "tensor/cpu_memory.h"
#include "tensor/internal_guard.h"

namespace op_tools::sim_device {

class ScopedKernel {
 public:
  bool is_of_tool() const { return is_of_tool_; }

 private:
  KernelMemory memory_;  // before the guard
  // Before the guard: a tool's own calls on the device have the same keys excluded.
  const bool is_of_tool_ = c10::impl::tls_local_dispatch_key_set().excluded_.has_all(kAboveBackendKeys);
  InternalGuard guard_;
  at::DisableRecordFunctionGuard no_record_;
};

}  // namespace op_tools::sim_device
