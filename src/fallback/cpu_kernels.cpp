#include "fallback/cpu_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_map>

#include "fallback/rnn_cells.h"

namespace op_tools {

const c10::KernelFunction* cpu_kernel_for(const c10::OperatorHandle& op) {
  const auto made_of = [](auto* function) { return c10::KernelFunction::makeFromUnboxedRuntimeFunction(function); };
  static const auto* kernels = new std::unordered_map<std::string, c10::KernelFunction>{
      {"aten::_thnn_fused_lstm_cell", made_of(&rnn_cells::lstm)},
      {"aten::_thnn_fused_lstm_cell_backward_impl", made_of(&rnn_cells::lstm_backward)},
      {"aten::_thnn_fused_gru_cell", made_of(&rnn_cells::gru)},
      {"aten::_thnn_fused_gru_cell_backward", made_of(&rnn_cells::gru_backward)},
  };
  const auto found = kernels->find(op.operator_name().name);
  if (found == kernels->end() || !op.operator_name().overload_name.empty()) return nullptr;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ? nullptr : &found->second;
}

}  // namespace op_tools
