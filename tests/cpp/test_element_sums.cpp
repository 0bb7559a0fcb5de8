// Statistics of CPU tensors and their hash against a plain loop over the elements: each dtype, sizes around those of
// vectors, blocks and parts, strides, elements at odd places, special values.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "special_values.h"
#include "tensor/element_hash.h"
#include "tensor/element_sums.h"
#include "tensor/float_conversion.h"

using namespace op_tools;

namespace {

const std::vector<c10::ScalarType> kDtypes{
    at::kFloat,        at::kDouble,        at::kHalf,        at::kBFloat16,    at::kLong,         at::kInt,
    at::kShort,        at::kChar,          at::kByte,        at::kBool,        at::kUInt16,       at::kUInt64,
    at::kComplexFloat, at::kComplexDouble, at::kComplexHalf, at::kFloat8_e5m2, at::kFloat8_e4m3fn};

// By the definition in element_hash.h, word by word.
uint64_t plain_hash(const std::string& bytes) {
  using namespace element_hash;
  std::string filled = bytes;
  filled.resize((bytes.size() + kChunkBytes - 1) / kChunkBytes * kChunkBytes);
  const size_t words = filled.size() / kWordBytes;
  std::vector<uint64_t> columns(words / 8);
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, filled.data() + i * kWordBytes, sizeof word);
    const size_t place = i % kWords;
    columns[i / kWords * 8 + place % 8] += keyed_word(word, kKeys[place]);
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < columns.size(); ++i) sum += mixed_word(columns[i], i);
  return sum;
}

// Of contiguous elements.
void check_against_plain(const ElementSums& sums, const at::Tensor& tensor) {
  const bool is_complex = tensor.is_complex();
  const int64_t numel = tensor.numel(), parts = is_complex ? 2 : 1;
  std::vector<double> numbers(static_cast<size_t>(numel * parts));
  load_float64(tensor.scalar_type(), tensor.const_data_ptr(), 0, numel, numbers.data());
  long double sum = 0, squares = 0, size_of_all = 0, size_of_projected = 0, projections[sign_pattern::kProjections]{};
  double least = std::numeric_limits<double>::infinity(), most = -least;
  int64_t nan = 0, inf = 0, zero = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const double real = numbers[static_cast<size_t>(i * parts)];
    const double imaginary = is_complex ? numbers[static_cast<size_t>(2 * i + 1)] : 0;
    const double size = is_complex ? std::hypot(real, imaginary) : real;
    nan += std::isnan(real) || std::isnan(imaginary);
    inf += std::isinf(real) || std::isinf(imaginary);
    zero += real == 0 && imaginary == 0;
    if (size < least) least = size;
    if (size > most) most = size;
    sum += size;
    size_of_all += std::fabs(size);
    squares += static_cast<long double>(real) * real + static_cast<long double>(imaginary) * imaginary;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (int64_t p = 0; p < sign_pattern::kProjections; ++p) {
      if (std::fabs(numbers[i]) <= sign_pattern::kMost) {
        projections[p] += sign_pattern::element_sign(p, static_cast<int64_t>(i)) * numbers[i];
      }
    }
    if (std::fabs(numbers[i]) <= sign_pattern::kMost) size_of_projected += std::fabs(numbers[i]);
  }
  CHECK(sums.nan == nan);
  CHECK(sums.inf == inf);
  CHECK(sums.zero == zero);
  CHECK((is_complex && nan > 0 ? std::isnan(sums.min) : sums.min == least));
  CHECK((is_complex && nan > 0 ? std::isnan(sums.max) : sums.max == most));
  if (nan + inf == 0) {
    const double near = 1e-12 * static_cast<double>(size_of_all + std::sqrt(squares)) * 2;
    CHECK(std::fabs(sums.sum - static_cast<double>(sum)) <= near);
    CHECK(std::fabs(sums.squares - static_cast<double>(squares)) <= 1e-12 * static_cast<double>(squares));
  } else {
    CHECK_FALSE(std::isfinite(sums.squares));
  }
  for (size_t p = 0; p < sums.projections.size(); ++p) {
    CHECK(std::fabs(sums.projections[p] - static_cast<double>(projections[p])) <=
          2e-12 * static_cast<double>(size_of_projected));
  }
  const std::string bytes(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  CHECK(sums.hash == plain_hash(bytes));
  if (tensor.scalar_type() == at::kLong && numel > 0) {
    CHECK(sums.exact_min == tensor.min().item<int64_t>());
    CHECK(sums.exact_max == tensor.max().item<int64_t>());
  }
}

at::Tensor sample(int64_t numel, c10::ScalarType dtype) {
  const bool real = at::isFloatingType(dtype) || at::isComplexType(dtype);
  const at::Tensor numbers = real ? at::randn({numel}, at::kDouble) : at::randint(0, 100, {numel}, at::kLong);
  return numbers.to(dtype == at::kUInt64 || dtype == at::kUInt16 ? at::kLong : dtype).to(dtype);
}

}  // namespace

TEST_CASE("Sums and hash of a tensor are those of a plain loop", "[element_sums]") {
  at::manual_seed(3);
  for (const c10::ScalarType dtype : kDtypes) {
    for (const int64_t numel : {0, 1, 2, 7, 8, 9, 63, 65, 511, 512, 513, 1024, 2047, 2048, 2049, 70'001}) {
      INFO(c10::toString(dtype) << ", " << numel << " elements");
      const at::Tensor x = sample(numel, dtype);
      check_against_plain(element_sums(x), x);
      CHECK(element_hash_sum(x) == element_sums(x).hash);
    }
  }
}

TEST_CASE("Strides and odd places in memory make no difference to them", "[element_sums]") {
  at::manual_seed(4);
  for (const c10::ScalarType dtype : kDtypes) {
    const at::Tensor x = sample(21 * 45 * 16, dtype).view({21, 45, 16});
    for (const at::Tensor& view :
         {x.permute({2, 1, 0}), x.transpose(0, 1), x.transpose(1, 2), x.narrow(2, 1, 13), x.narrow(1, 3, 40),
          x.slice(2, 1, 16, 3), x.view({-1}).slice(0, 1), x.view({-1}).slice(0, 3, 3000), x.select(2, 5),
          x.narrow(0, 2, 1).expand({7, 45, 16}), x.select(2, 0).unsqueeze(2).expand({21, 45, 9})}) {
      INFO(c10::toString(dtype) << " " << view.sizes() << " " << view.strides());
      check_against_plain(element_sums(view), view.contiguous());
      CHECK(element_hash_sum(view) == element_sums(view).hash);
    }
  }
}

TEST_CASE("NaN, infinities, zeros and extremes are found wherever they are", "[element_sums]") {
  at::manual_seed(5);
  for (const c10::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    for (const int64_t numel : {5, 700, 2500}) {
      for (const int64_t place : {int64_t{0}, int64_t{3}, numel / 2, numel - 1}) {
        for (const double special : {kNan, kInf, -kInf, 0.0, -0.0, 60000.0, -60000.0, -3e38}) {
          INFO(c10::toString(dtype) << ", " << special << " at " << place << " of " << numel);
          const at::Tensor x = sample(numel, dtype);
          x.select(0, place).copy_(
              at::scalar_tensor(special, at::kDouble));  // some torches' fill_ refuses -3e38 in float16
          check_against_plain(element_sums(x), x);
        }
      }
    }
  }
}

TEST_CASE("Other elements or another order are another hash", "[element_sums]") {
  const auto hash_of = [](const at::Tensor& x) { return element_sums(x).hash; };
  std::set<uint64_t> seen;
  size_t tensors = 0;
  const auto add = [&](const at::Tensor& x) {
    seen.insert(hash_of(x));
    ++tensors;
  };
  const at::Tensor zeros = at::zeros({300}, at::kLong);
  for (int64_t i = 0; i < 300; ++i) {  // a single element moves, and each bit of it
    for (const int64_t value : {1L, -1L, 1L << 32, (1L << 32) - 1}) {
      const at::Tensor x = zeros.clone();
      x.select(0, i).fill_(value);
      add(x);
    }
  }
  for (int64_t bit = 1; bit < 63; ++bit) {
    if (bit != 32) add(zeros.index_fill(0, at::arange(70, 71), int64_t{1} << bit));
  }
  // Two swaps that undo each other's differences.
  const at::Tensor pattern = at::zeros({256}, at::kLong).index_fill(0, at::arange(0, 256, 3), int64_t{5});
  for (int64_t i = 0; i + 67 < 256; i += 3) {
    const at::Tensor x = pattern.clone();
    x.select(0, i).fill_(0);
    x.select(0, i + 1).fill_(5);
    x.select(0, i + 64).copy_(pattern.select(0, i + 65));
    x.select(0, i + 65).copy_(pattern.select(0, i + 64));
    add(x);
  }
  CHECK(seen.size() == tensors);
}
