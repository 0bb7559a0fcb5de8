// Stands while the device computes: what runs inside goes past autograd, autocast, modes, tools and the profiler.
#pragma once

#include <ATen/record_function.h>

#include "tensor/cpu_memory.h"
#include "tensor/internal_guard.h"

namespace op_tools::sim_device {

class ScopedKernel {
 private:
  KernelMemory memory_;  // before the guard
  InternalGuard guard_;
  at::DisableRecordFunctionGuard no_record_;
};

}  // namespace op_tools::sim_device
