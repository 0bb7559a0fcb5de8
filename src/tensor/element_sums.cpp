#include "tensor/element_sums.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/float_conversion.h"
#include "tensor/parallel_for.h"

namespace op_tools {
namespace {

using sign_pattern::kLanes;
using sign_pattern::kProjections;

constexpr int64_t kBlock = sign_pattern::kBlock;  // numbers that stay in the first-level cache as float64
constexpr int64_t kPerTask = 128 * kBlock;

typedef double Doubles __attribute__((vector_size(sizeof(double) * kLanes)));
typedef int64_t Bits __attribute__((vector_size(sizeof(int64_t) * kLanes)));
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// By group: the signs of all projections.
struct GroupSigns {
  double of[sign_pattern::kGroups][kProjections];
};
constexpr GroupSigns group_signs() {
  GroupSigns signs{};
  for (int64_t group = 0; group < sign_pattern::kGroups; ++group) {
    for (int64_t p = 0; p < kProjections; ++p) signs.of[group][p] = sign_pattern::group_sign(p, group);
  }
  return signs;
}
constexpr GroupSigns kGroupSigns = group_signs();

[[gnu::always_inline]] inline void add_number(double x, int64_t place, ElementSums* sums) {
  sums->min = x < sums->min ? x : sums->min;
  sums->max = x > sums->max ? x : sums->max;
  sums->sum += x;
  sums->squares += x * x;
  sums->zero += x == 0;
  for (int64_t p = 0; p < kProjections; ++p) {
    sums->projections[static_cast<size_t>(p)] +=
        sign_pattern::lane_sign(p, place % kLanes) * kGroupSigns.of[place / kLanes][p] * x;
  }
}

// Of the numbers of one block, with the signs that they have in block 0. NaN and infinity are not counted.
OP_TOOLS_WIDE void add_numbers(const double* numbers, int64_t n, ElementSums* sums) {
  Doubles min = Doubles{} + kInfinity, max = -min, sum{}, squares{}, first{}, second{}, third{}, fourth{};
  Bits zero{};
  static_assert(kProjections == 4);
  const int64_t groups = n / kLanes;
  for (int64_t group = 0; group < groups; ++group) {
    const Doubles x = *reinterpret_cast<const Doubles*>(numbers + group * kLanes);
    const double* const signs = kGroupSigns.of[group];
    min = x < min ? x : min;  // a NaN is less than nothing
    max = x > max ? x : max;
    sum += x;
    squares += x * x;
    zero -= x == Doubles{};
    first += x * signs[0];
    second += x * signs[1];
    third += x * signs[2];
    fourth += x * signs[3];
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sums->min = std::min(sums->min, min[lane]);
    sums->max = std::max(sums->max, max[lane]);
    sums->sum += sum[lane];
    sums->squares += squares[lane];
    sums->zero += zero[lane];
    sums->projections[0] += sign_pattern::lane_sign(0, lane) * first[lane];
    sums->projections[1] += sign_pattern::lane_sign(1, lane) * second[lane];
    sums->projections[2] += sign_pattern::lane_sign(2, lane) * third[lane];
    sums->projections[3] += sign_pattern::lane_sign(3, lane) * fourth[lane];
  }
  for (int64_t i = groups * kLanes; i < n; ++i) add_number(numbers[i], i, sums);
}

// Only blocks whose sum of squares is not finite have any (or float64 that overflow there).
OP_TOOLS_WIDE void count_special(const double* numbers, int64_t n, ElementSums* sums) {
  int64_t nan = 0, inf = 0;
  for (int64_t i = 0; i < n; ++i) {
    nan += numbers[i] != numbers[i];
    inf += std::fabs(numbers[i]) == kInfinity;
  }
  sums->nan += nan;
  sums->inf += inf;
}

// After add_numbers() of its parts: what is of |x|, or of both parts together.
void as_complex(const double* parts, int64_t n, ElementSums* sums) {
  ElementSums found;
  for (int64_t i = 0; i < n; ++i) {
    const double real = parts[2 * i], imaginary = parts[2 * i + 1], size = std::hypot(real, imaginary);
    found.min = size < found.min || std::isnan(size) ? size : found.min;
    found.max = size > found.max || std::isnan(size) ? size : found.max;
    found.sum += size;
    found.nan += std::isnan(real) || std::isnan(imaginary);
    found.inf += std::isinf(real) || std::isinf(imaginary);
    found.zero += real == 0 && imaginary == 0;
  }
  found.squares = sums->squares;
  found.projections = sums->projections;
  *sums = found;
}

void add_exact(const int64_t* numbers, int64_t n, int64_t turn, ElementSums* sums) {
  for (int64_t i = 0; i < n; ++i) {
    sums->exact_min = std::min(sums->exact_min, numbers[i] ^ turn);
    sums->exact_max = std::max(sums->exact_max, numbers[i] ^ turn);
  }
}

template <class T>
[[gnu::always_inline]] inline uint64_t hash_words(const T* words, int64_t first, int64_t n) {
  uint64_t sum = 0, place = static_cast<uint64_t>(first) * kMixPlace;
  for (int64_t i = 0; i < n; ++i) {
    place += kMixPlace;
    uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(words[i])) * kMixWord + place;
    bits ^= static_cast<uint64_t>(static_cast<int64_t>(bits) >> 32);
    bits *= kMixWord;
    bits ^= static_cast<uint64_t>(static_cast<int64_t>(bits) >> 29);
    sum += bits;
  }
  return sum;
}
OP_TOOLS_WIDE uint64_t hash_8(const int8_t* words, int64_t first, int64_t n) {
  return hash_words(words, first, n);
}
OP_TOOLS_WIDE uint64_t hash_16(const int16_t* words, int64_t first, int64_t n) {
  return hash_words(words, first, n);
}
OP_TOOLS_WIDE uint64_t hash_32(const int32_t* words, int64_t first, int64_t n) {
  return hash_words(words, first, n);
}
OP_TOOLS_WIDE uint64_t hash_64(const int64_t* words, int64_t first, int64_t n) {
  return hash_words(words, first, n);
}

uint64_t hash_of(const void* data, size_t element, int64_t first, int64_t n) {
  switch (element) {
    case 1:
      return hash_8(static_cast<const int8_t*>(data) + first, first, n);
    case 2:
      return hash_16(static_cast<const int16_t*>(data) + first, first, n);
    case 4:
      return hash_32(static_cast<const int32_t*>(data) + first, first, n);
    case 8:
      return hash_64(static_cast<const int64_t*>(data) + first, first, n);
    default:  // two words
      return hash_64(static_cast<const int64_t*>(data) + 2 * first, 2 * first, 2 * n);
  }
}

void merge(const ElementSums& from, int64_t block, ElementSums* to) {
  to->min = from.min < to->min || std::isnan(from.min) ? from.min : to->min;
  to->max = from.max > to->max || std::isnan(from.max) ? from.max : to->max;
  to->sum += from.sum;
  to->squares += from.squares;
  for (size_t p = 0; p < from.projections.size(); ++p) {
    const double sign = block < 0 ? 1 : sign_pattern::block_sign(static_cast<int64_t>(p), block);
    to->projections[p] += sign * from.projections[p];
  }
  to->nan += from.nan;
  to->inf += from.inf;
  to->zero += from.zero;
  to->exact_min = std::min(to->exact_min, from.exact_min);
  to->exact_max = std::max(to->exact_max, from.exact_max);
  to->hash += from.hash;
}

constexpr int64_t kNoBlock = -1;

// Elements `first` to `last`, block by block.
ElementSums sums_of(const void* data, c10::ScalarType dtype, int64_t first, int64_t last) {
  const bool is_complex = c10::isComplexType(dtype);
  const bool is_wide = dtype == c10::ScalarType::Long || dtype == c10::ScalarType::UInt64;
  const int64_t turn = dtype == c10::ScalarType::UInt64 ? std::numeric_limits<int64_t>::min() : 0;
  const int64_t parts = is_complex ? 2 : 1, per_block = kBlock / parts;
  const size_t element = c10::elementSize(dtype);
  alignas(64) double numbers[kBlock];
  ElementSums all;
  for (; first < last; first += per_block) {
    const int64_t n = std::min(per_block, last - first);
    ElementSums block;
    load_float64(dtype, data, first, n, numbers);
    add_numbers(numbers, n * parts, &block);
    if (is_complex) {
      as_complex(numbers, n, &block);
    } else if (!std::isfinite(block.squares)) {
      count_special(numbers, n, &block);
    }
    if (is_wide) add_exact(static_cast<const int64_t*>(data) + first, n, turn, &block);
    block.hash = hash_of(data, element, first, n);
    merge(block, first / per_block, &all);
  }
  return all;
}

}  // namespace

// Blocks make tasks, tasks make the whole, in order: few additions in a row, so little rounding, and numbers that do
// not depend on the threads.
ElementSums element_sums(const at::Tensor& dense) {
  const int64_t numel = dense.numel(), tasks = (numel + kPerTask - 1) / kPerTask;
  const void* data = dense.const_data_ptr();
  const c10::ScalarType dtype = dense.scalar_type();
  if (tasks <= 1) return sums_of(data, dtype, 0, numel);
  std::vector<ElementSums> found(static_cast<size_t>(tasks));
  parallel_for(tasks, kPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      found[static_cast<size_t>(task)] = sums_of(data, dtype, task * kPerTask, std::min(numel, (task + 1) * kPerTask));
    }
  });
  ElementSums all;
  for (const ElementSums& one : found) merge(one, kNoBlock, &all);
  return all;
}

}  // namespace op_tools
