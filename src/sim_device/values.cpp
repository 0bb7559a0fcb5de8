#include "sim_device/values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace op_tools::sim_device::values {
namespace {

bool same_bits(const at::Tensor& tensor, const at::Tensor& other) {
  const at::Tensor a = tensor.contiguous(), b = other.contiguous();
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// Without conjugate and negative bits, so that its memory is its value.
at::Tensor flat_copy(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous).view(-1);
}

bool is_real_or_complex_number(const at::Tensor& tensor) {
  return c10::isFloatingType(tensor.scalar_type()) || c10::isComplexType(tensor.scalar_type());
}

void make_wrong(const at::Tensor& part, double scale) {
  if (is_real_or_complex_number(part)) {
    part.mul_(scale);
  } else if (part.scalar_type() == at::kBool) {
    part.logical_not_();
  } else {
    part.add_(1);
  }
}

at::ScalarType next_lower(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return at::kFloat;
    case at::kFloat:
      return at::kBFloat16;
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat8_e5m2;
    default:
      return type;
  }
}

}  // namespace

bool replace(const at::Tensor& result, const at::Tensor& other) {
  const at::Tensor shaped = other.view(result.sizes());
  if (same_bits(result.resolve_conj().resolve_neg(), shaped)) return false;
  result.copy_(shaped);
  return true;
}

bool scale(const at::Tensor& result, double scale, int64_t from) {
  if (from >= result.numel()) return false;
  at::Tensor wrong = flat_copy(result);
  make_wrong(wrong.slice(0, from), scale);
  return replace(result, wrong);
}

bool odd_rows(const at::Tensor& result, double scale) {
  if (result.dim() == 0 || result.size(0) < 2) return false;
  const at::Tensor wrong = flat_copy(result).view(result.sizes());
  for (int64_t row = 1; row < result.size(0); row += 2) make_wrong(wrong.select(0, row), scale);
  return replace(result, wrong);
}

bool leaking_rows(const at::Tensor& result, double scale) {
  if (result.dim() == 0 || result.size(0) < 2 || result.numel() == 0 || !is_real_or_complex_number(result))
    return false;
  const at::Tensor right = flat_copy(result).view(result.sizes()), wrong = right.clone();
  wrong.slice(0, 1).add_(right.slice(0, 0, -1), scale - 1);
  return replace(result, wrong);
}

bool flip_bit(const at::Tensor& result, uint64_t draw) {
  if (result.numel() == 0) return false;
  const at::Tensor wrong = flat_copy(result);
  auto* const bytes = static_cast<unsigned char*>(wrong.mutable_data_ptr());
  const bool is_bool = result.scalar_type() == at::kBool;  // of eight bits a single bit is its value
  const uint64_t bit = is_bool ? draw % wrong.nbytes() * 8 : draw % (wrong.nbytes() * 8);
  bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
  return replace(result, wrong);
}

bool element(const at::Tensor& result, double scale, uint64_t draw) {
  const int64_t count = result.numel();
  if (count == 0) return false;
  at::Tensor wrong = flat_copy(result);
  // NaN and infinity stay unchanged: then another of the next elements.
  constexpr int64_t kTries = 64;
  for (int64_t attempt = 0; attempt < std::min(count, kTries); ++attempt) {
    const int64_t index = static_cast<int64_t>((draw + static_cast<uint64_t>(attempt)) % static_cast<uint64_t>(count));
    at::Tensor tensor = wrong.slice(0, index, index + 1);
    const at::Tensor was = tensor.clone();
    make_wrong(tensor, scale);
    if (is_real_or_complex_number(tensor) && same_bits(tensor, was)) tensor.add_(scale - 1);
    if (replace(result, wrong)) return true;
  }
  return false;
}

bool special(const at::Tensor& result, double value, uint64_t draw) {
  if (result.numel() == 0 || !is_real_or_complex_number(result)) return false;
  at::Tensor wrong = flat_copy(result);
  const int64_t index = static_cast<int64_t>(draw % static_cast<uint64_t>(result.numel()));
  wrong.slice(0, index, index + 1).fill_(value);
  return replace(result, wrong);
}

bool low_precision(const at::Tensor& result) {
  if (c10::isComplexType(result.scalar_type())) {
    const at::Tensor parts = at::view_as_real(flat_copy(result));
    return low_precision(parts) && replace(result, at::view_as_complex(parts));
  }
  const at::ScalarType type = result.scalar_type(), lower = next_lower(type);
  return lower != type && result.numel() > 0 && replace(result, flat_copy(result).to(lower).to(type));
}

bool swap_rows(const at::Tensor& result, uint64_t draw) {
  int64_t dim = 0;
  while (dim < result.dim() && result.size(dim) < 2) ++dim;
  if (dim >= result.dim() || result.numel() == 0) return false;
  const at::Tensor wrong = flat_copy(result).view(result.sizes());
  const int64_t pairs = result.size(dim) - 1;
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t row = static_cast<int64_t>((draw + static_cast<uint64_t>(i)) % static_cast<uint64_t>(pairs));
    const at::Tensor tensor = wrong.select(dim, row), other = wrong.select(dim, row + 1);
    if (same_bits(tensor, other)) continue;
    const at::Tensor before = tensor.clone();
    tensor.copy_(other);
    other.copy_(before);
    return replace(result, wrong);
  }
  return false;
}

bool noise(const at::Tensor& result, double scale, uint64_t draw) {
  if (!is_real_or_complex_number(result) || result.numel() == 0) return false;
  std::mt19937_64 numbers(draw);
  std::uniform_real_distribution<double> factor(2 - scale, scale);
  const at::Tensor factors = at::empty({result.numel()}, at::kDouble);
  auto* data = factors.mutable_data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) data[i] = factor(numbers);
  const at::Tensor exact = flat_copy(result);
  return replace(result, exact.mul(factors).to(result.scalar_type()));
}

}  // namespace op_tools::sim_device::values
