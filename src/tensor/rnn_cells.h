// One step of an LSTM or GRU as devices have it, in a single operator each way, made of the operators that every
// backend has: for backends without such kernels (the CPU has none) and for the simulated device. Arguments and results
// are those of aten::_thnn_fused_*; the workspace holds the values of torch's CUDA kernels, in their order. Shapes:
// gates (batch, 4 or 3 * hidden), states (batch, hidden).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "base/export.h"

namespace op_tools::rnn_cells {

// (hidden, cell, workspace); the workspace: in, forget, update and out gates after their functions.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                    const at::Tensor& cell, const std::optional<at::Tensor>& input_bias,
                                                    const std::optional<at::Tensor>& hidden_bias);
// Gradients of (gates, cell, bias).
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_backward(const std::optional<at::Tensor>& grad_hidden,
                                                             const std::optional<at::Tensor>& grad_cell,
                                                             const at::Tensor& cell, const at::Tensor& new_cell,
                                                             const at::Tensor& workspace, bool has_bias);
// (hidden, workspace); the workspace: reset, keep and update gates, the old hidden state, its part of the update gate.
std::tuple<at::Tensor, at::Tensor> gru(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                       const at::Tensor& hidden, const std::optional<at::Tensor>& input_bias,
                                       const std::optional<at::Tensor>& hidden_bias);
// Gradients of (input gates, hidden gates, hidden, input bias, hidden bias).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_backward(const at::Tensor& grad,
                                                                                    const at::Tensor& workspace,
                                                                                    bool has_bias);

}  // namespace op_tools::rnn_cells
