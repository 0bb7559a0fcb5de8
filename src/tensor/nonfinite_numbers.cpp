#include "tensor/nonfinite_numbers.h"

#include <ATen/ops/view_as_real_ops.h>

#include <algorithm>
#include <atomic>

#include "tensor/float_conversion.h"
#include "tensor/parallel_for.h"

namespace op_tools {
namespace {

constexpr int64_t kBlock = 65536;  // elements that are looked at before asking whether to go on

// A float is no finite number exactly when all bits of its exponent are set: then adding 1 to it reaches the sign
// bit, in any of the words. Read in four places at once: the caches' prefetch ends with a page, and four pages
// are on their way together.
template <class Word>
inline __attribute__((always_inline)) Word reached(const Word* words, int64_t n, Word exponent, Word lowest) {
  Word a = 0, b = 0, c = 0, d = 0;
  const int64_t part = n / 4;
  const Word *second = words + part, *third = second + part, *fourth = third + part;
  const auto sum = [&](Word word) { return static_cast<Word>((word & exponent) + lowest); };
  for (int64_t i = 0; i < part; ++i) {
    a |= sum(words[i]);
    b |= sum(second[i]);
    c |= sum(third[i]);
    d |= sum(fourth[i]);
  }
  for (int64_t i = 4 * part; i < n; ++i) a |= sum(words[i]);
  return a | b | c | d;
}
OP_TOOLS_WIDE uint16_t reached_signs(const uint16_t* words, int64_t n, uint16_t exponent, uint16_t lowest) {
  return reached(words, n, exponent, lowest);
}
OP_TOOLS_WIDE uint32_t reached_signs(const uint32_t* words, int64_t n, uint32_t exponent, uint32_t lowest) {
  return reached(words, n, exponent, lowest);
}
OP_TOOLS_WIDE uint64_t reached_signs(const uint64_t* words, int64_t n, uint64_t exponent, uint64_t lowest) {
  return reached(words, n, exponent, lowest);
}

template <class Word>
bool any_special(const void* data, int64_t numel, Word exponent) {
  const auto* words = static_cast<const Word*>(data);
  const auto lowest = static_cast<Word>(exponent & (~exponent + 1));  // its lowest bit
  std::atomic<bool> nonfinite{false};
  parallel_for((numel + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end && !nonfinite.load(std::memory_order_relaxed); ++block) {
      const int64_t at = block * kBlock;
      const Word signs = reached_signs(words + at, std::min(kBlock, numel - at), exponent, lowest);
      if (signs >> (8 * sizeof(Word) - 1)) nonfinite.store(true, std::memory_order_relaxed);
    }
  });
  return nonfinite.load();
}

}  // namespace

at::Tensor dense_reals(const at::Tensor& tensor) {
  at::Tensor plain = tensor.is_complex() ? at::_ops::view_as_real::call(tensor.resolve_conj()) : tensor;
  plain = plain.resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

bool has_nonfinite(const at::Tensor& dense_reals) {
  const void* data = dense_reals.const_data_ptr();
  switch (dense_reals.scalar_type()) {
    case c10::ScalarType::Float:
      return any_special<uint32_t>(data, dense_reals.numel(), 0x7F800000u);
    case c10::ScalarType::Double:
      return any_special<uint64_t>(data, dense_reals.numel(), 0x7FF0000000000000u);
    case c10::ScalarType::Half:
      return any_special<uint16_t>(data, dense_reals.numel(), 0x7C00u);
    case c10::ScalarType::BFloat16:
      return any_special<uint16_t>(data, dense_reals.numel(), 0x7F80u);
    default:  // eight bits: forms with and without infinities
      return has_nonfinite(dense_reals.to(at::kFloat));
  }
}

}  // namespace op_tools
