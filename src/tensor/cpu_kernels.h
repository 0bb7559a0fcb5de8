// Runs an operator on the CPU with torch's kernel, or with ours where a device has the operator and torch has no CPU
// kernel for it (a cell of a recurrent network in a single kernel). The only place that chooses between the two.
// Nothing is registered with the dispatcher. Any thread.
#pragma once

#include <ATen/core/stack.h>

#include "base/export.h"

namespace c10 {
class KernelFunction;
class OperatorHandle;
}  // namespace c10

namespace op_tools {

// The choice for an operator; cheap to copy, valid as long as the process lives.
class OP_TOOLS_API CpuKernel {
 public:
  explicit CpuKernel(const c10::OperatorHandle& op);

  // torch has a kernel or composes the operator of others, or we have a kernel.
  bool exists(const c10::OperatorHandle& op) const;
  // A single kernel, not a composition of other operators.
  bool is_direct(const c10::OperatorHandle& op) const;

  // As a program calls the operator: through the dispatcher. Also for tensors on other devices: ours takes the call
  // only where all tensors are on the CPU.
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;
  // From inside a device's kernel: straight to the CPU's.
  void redispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;

 private:
  const c10::KernelFunction* ours_;  // nullptr where torch has a kernel
};

}  // namespace op_tools
