// Operators that devices have and torch has no CPU kernel for: a kernel of ours, so that they can be run again on the
// CPU. Nothing is registered with the dispatcher. Any thread.
#pragma once

#include "base/export.h"

namespace c10 {
class KernelFunction;
class OperatorHandle;
}  // namespace c10

namespace op_tools {

// nullptr: torch has a kernel, or nobody has. Lives as long as the process.
OP_TOOLS_API const c10::KernelFunction* cpu_kernel_for(const c10::OperatorHandle& op);

}  // namespace op_tools
