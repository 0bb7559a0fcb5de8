#include "tensor/cpu_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "compat/boxed_call.h"
#include "tensor/rnn_cells.h"

namespace op_tools {
namespace {

constexpr c10::DispatchKey kCpu = c10::DispatchKey::CPU;

const c10::KernelFunction* our_kernel(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(kCpu)) return nullptr;
  const auto made_of = [](auto* function) { return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function); };
  static const auto* kernels = new std::unordered_map<std::string, c10::KernelFunction>{
      {"aten::_thnn_fused_lstm_cell", made_of(&rnn_cells::lstm)},
      {"aten::_thnn_fused_lstm_cell_backward_impl", made_of(&rnn_cells::lstm_backward)},
      {"aten::_thnn_fused_gru_cell", made_of(&rnn_cells::gru)},
      {"aten::_thnn_fused_gru_cell_backward", made_of(&rnn_cells::gru_backward)},
  };
  const auto entry = kernels->find(op.operator_name().name);
  return entry == kernels->end() || !op.operator_name().overload_name.empty() ? nullptr : &entry->second;
}

bool all_on_cpu(const torch::jit::Stack& stack) {
  return std::all_of(stack.begin(), stack.end(), [](const c10::IValue& value) {
    return !value.isTensor() || !value.toTensor().defined() || value.toTensor().device().is_cpu();
  });
}

}  // namespace

CpuKernel::CpuKernel(const c10::OperatorHandle& op) : ours_(our_kernel(op)) {}

bool CpuKernel::exists(const c10::OperatorHandle& op) const {
  return ours_ || op.hasComputedKernelForDispatchKey(kCpu);
}

bool CpuKernel::is_direct(const c10::OperatorHandle& op) const {
  return ours_ || op.hasKernelForDispatchKey(kCpu);
}

void CpuKernel::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  if (ours_ && all_on_cpu(*stack)) {
    ours_->callBoxed(op, c10::DispatchKeySet(), stack);
  } else {
    compat::call_boxed(op, *stack, [&] { op.callBoxed(stack); });
  }
}

void CpuKernel::redispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  constexpr c10::DispatchKeySet kKeys(kCpu);
  if (ours_) {
    ours_->callBoxed(op, kKeys, stack);
  } else {
    compat::call_boxed(op, *stack, [&] { op.redispatchBoxed(kKeys, stack); });
  }
}

}  // namespace op_tools
