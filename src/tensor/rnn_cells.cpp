#include "tensor/rnn_cells.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

namespace op_tools::rnn_cells {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool is_given(const MaybeTensor& tensor) {
  return tensor && tensor->defined();
}

Tensor plus(const Tensor& gates, const MaybeTensor& bias) {
  return is_given(bias) ? gates + *bias : gates;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                        const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto gates = (plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), update = gates[2].tanh(), out = gates[3].sigmoid();
  const Tensor new_cell = forget * cell + in * update;
  return {out * new_cell.tanh(), new_cell, at::cat({in, forget, update, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(const MaybeTensor& grad_hidden, const MaybeTensor& grad_cell,
                                                 const Tensor& cell, const Tensor& new_cell, const Tensor& workspace,
                                                 bool has_bias) {
  if (!is_given(grad_hidden) && !is_given(grad_cell)) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &update = gates[2], &out = gates[3];
  const Tensor hidden = is_given(grad_hidden) ? *grad_hidden : at::zeros_like(new_cell);
  const Tensor squashed = new_cell.tanh();
  Tensor into_cell = hidden * out * (1 - squashed * squashed);
  if (is_given(grad_cell)) into_cell = into_cell + *grad_cell;
  const Tensor grad_gates = at::cat({into_cell * update * in * (1 - in), into_cell * cell * forget * (1 - forget),
                                     into_cell * in * (1 - update * update), hidden * squashed * out * (1 - out)},
                                    1);
  return {grad_gates, into_cell * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                               const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto input = plus(input_gates, input_bias).chunk(3, 1);
  const auto recurrent = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (input[0] + recurrent[0]).sigmoid(), keep = (input[1] + recurrent[1]).sigmoid();
  const Tensor update = (input[2] + reset * recurrent[2]).tanh();
  return {update + keep * (hidden - update), at::cat({reset, keep, update, hidden, recurrent[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& grad, const Tensor& workspace,
                                                                bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &keep = saved[1], &update = saved[2], &hidden = saved[3], &recurrent = saved[4];
  const Tensor grad_update = grad * (1 - keep) * (1 - update * update);
  const Tensor grad_keep = grad * (hidden - update) * keep * (1 - keep);
  const Tensor grad_reset = grad_update * recurrent * reset * (1 - reset);
  const Tensor grad_input = at::cat({grad_reset, grad_keep, grad_update}, 1);
  const Tensor grad_recurrent = at::cat({grad_reset, grad_keep, grad_update * reset}, 1);
  return {grad_input, grad_recurrent, grad * keep, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_recurrent.sum(0) : Tensor()};
}

}  // namespace op_tools::rnn_cells
