// Results as another correct implementation would give them: sums in another order, the last bit rounded otherwise.
// CPU tensors; called where a kernel runs, in the calling thread or a stream's worker. Stateless but for the switch.
#pragma once

#include <ATen/core/stack.h>

#include <cstddef>
#include <vector>

#include "tensor/cpu_kernels.h"

namespace op_tools::sim_device {

// Facts about an operator; made once.
class OtherRounding {
 public:
  // `written`: positions of arguments that it writes. `may_run_again`: a call more of the CPU's kernel does no harm.
  OtherRounding(const c10::OperatorHandle& op, std::vector<size_t> written, bool may_run_again);

  // In place of kernel.redispatch(). The same arguments give the same bits.
  void redispatch(const c10::OperatorHandle& op, const CpuKernel& kernel, torch::jit::Stack& stack) const;

 private:
  // How tensors can be turned around such that sums run the other way and the result is turned around with them.
  enum class Mirror : uint8_t {
    kNone,
    kAll,  // every dimension
    kTwo,  // batch and channels: windows need not fit into the others from both sides
  };
  torch::jit::Stack in_float64(const torch::jit::Stack& arguments) const;
  void redispatch_mirrored(const c10::OperatorHandle& op, const CpuKernel& kernel, torch::jit::Stack& stack) const;

  std::vector<size_t> written_;
  std::vector<size_t> dtypes_;  // positions of arguments that name a dtype
  Mirror mirror_ = Mirror::kNone;
  bool runs_again_ = false;
  bool is_arithmetic_ = false;
};

}  // namespace op_tools::sim_device
