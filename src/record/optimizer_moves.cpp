#include "record/optimizer_moves.h"

#include <c10/core/ScalarType.h>

#include <string>

#include "tensor/internal_guard.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

constexpr double kLeast = 1e-30;  // instead of a gradient's size that is zero

bool has_numbers(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type()) &&
         !tensor.is_meta() && !tensor._is_zerotensor() && why_not_plain(tensor, &type).empty();
}

at::Tensor widened(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kDouble ? tensor : tensor.to(at::kFloat);
}

}  // namespace

at::Tensor copy_before_step(const at::Tensor& parameter) {
  const InternalGuard ours;
  return has_numbers(parameter) ? parameter.clone() : at::Tensor();
}

at::Tensor move_along_gradient(const at::Tensor& before, const at::Tensor& after, const at::Tensor& gradient) {
  const InternalGuard ours;
  if (!has_numbers(before) || !has_numbers(after) || !has_numbers(gradient) || before.sizes() != after.sizes() ||
      before.sizes() != gradient.sizes() || before.device() != after.device() || before.device() != gradient.device()) {
    return {};
  }
  const at::Tensor weight = widened(gradient);
  const at::Tensor size = weight.square().mean().sqrt().clamp_min(kLeast);
  return weight.div(size).clamp(-1, 1).mul(widened(after).sub(widened(before)));
}

}  // namespace op_tools
