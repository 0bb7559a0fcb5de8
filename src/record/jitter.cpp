#include "record/jitter.h"

#include <ATen/Dispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/mul_ops.h>

#include <limits>

#include "tensor/plain_tensor.h"
#include "tensor/sign_pattern.h"

namespace op_tools {
namespace {

struct Limits {
  double least_normal, largest;
};

template <class T>
Limits limits_of() {
  return {static_cast<double>(std::numeric_limits<T>::min()), static_cast<double>(std::numeric_limits<T>::max())};
}

Limits limits_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return limits_of<c10::Half>();
    case c10::ScalarType::BFloat16:
      return limits_of<c10::BFloat16>();
    case c10::ScalarType::Float:
      return limits_of<float>();
    default:
      return limits_of<double>();
  }
}

c10::ScalarType words_of(const at::Tensor& tensor) {
  return tensor.element_size() == 2 ? at::kShort : tensor.element_size() == 4 ? at::kInt : at::kLong;
}

}  // namespace

bool can_jitter(const at::Tensor& tensor) {
  std::string type;
  return tensor.is_floating_point() && tensor.element_size() >= 2 && tensor.numel() > 0 &&
         tensor.layout() == at::kStrided && why_not_plain(tensor, &type).empty() && !tensor._is_zerotensor();
}

void jitter(const at::Tensor& tensor, int64_t seed) {
  const at::Tensor memory = tensor.variable_data();  // the same memory with a counter of its own
  const at::Tensor on_cpu = memory.to(at::kCPU);     // a device under suspicion computes none of it
  const Limits limits = limits_of(tensor.scalar_type());
  const at::Tensor size = at::_ops::abs::call(on_cpu);
  const at::Tensor changes = at::_ops::bitwise_and_Tensor::call(
      at::_ops::ge_Scalar::call(size, limits.least_normal * 2), at::_ops::lt_Scalar::call(size, limits.largest));
  // The next number away from zero, or towards it, is the next word: floating-point numbers are ordered as their words.
  at::Tensor signs =
      at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(on_cpu.sizes()), at::kChar, std::nullopt,
                                          c10::Device(at::kCPU), std::nullopt, std::nullopt);
  auto* const sign = signs.mutable_data_ptr<int8_t>();
  const uint64_t start = sign_pattern::scrambled(static_cast<uint64_t>(seed));
  for (int64_t i = 0; i < signs.numel(); ++i) {
    sign[i] = (sign_pattern::scrambled(start + static_cast<uint64_t>(i)) & 1) != 0 ? 1 : -1;
  }
  const at::Tensor steps = at::_ops::mul_Tensor::call(signs, changes).to(words_of(on_cpu));
  on_cpu.view(words_of(on_cpu)).add_(steps);
  if (!memory.is_cpu()) memory.copy_(on_cpu);
}

}  // namespace op_tools
