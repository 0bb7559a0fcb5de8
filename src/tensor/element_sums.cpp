#include "tensor/element_sums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tensor/float_conversion.h"
#include "tensor/merged_dims.h"
#include "tensor/parallel_for.h"

namespace op_tools {
namespace {

using sign_pattern::kLanes;
using sign_pattern::kProjections;

constexpr int64_t kBlock = sign_pattern::kBlock;  // numbers that stay in the first-level cache as float64
constexpr int64_t kPerTask = 128 * kBlock;

typedef double Doubles __attribute__((vector_size(sizeof(double) * kLanes)));
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kWordBytes = 8;

// By group: the signs of all projections. Sorted by them: groups with the same signs are added up first.
struct GroupSigns {
  double of[sign_pattern::kGroups][kProjections];
  int64_t sorted[sign_pattern::kGroups];
  struct Run {
    int64_t begin, end;
    double signs[kProjections];
  } runs[1 << kProjections];
};
constexpr GroupSigns group_signs() {
  GroupSigns signs{};
  int64_t sorted = 0;
  for (int64_t pattern = 0; pattern < 1 << kProjections; ++pattern) {
    GroupSigns::Run& run = signs.runs[pattern];
    run.begin = sorted;
    for (int64_t p = 0; p < kProjections; ++p) run.signs[p] = sign_pattern::sign(pattern >> p & 1);
    for (int64_t group = 0; group < sign_pattern::kGroups; ++group) {
      bool same = true;
      for (int64_t p = 0; p < kProjections; ++p) {
        signs.of[group][p] = sign_pattern::group_sign(p, group);
        same = same && signs.of[group][p] == run.signs[p];
      }
      if (same) signs.sorted[sorted++] = group;
    }
    run.end = sorted;
  }
  return signs;
}
constexpr GroupSigns kGroupSigns = group_signs();

struct BlockSigns {
  explicit BlockSigns(int64_t block) {
    for (int64_t p = 0; p < kProjections; ++p) of[p] = sign_pattern::block_sign(p, block);
  }
  double of[kProjections];
};

// Sums by lane, over many blocks.
struct LaneSums {
  Doubles sum{}, squares{}, first{}, second{}, third{}, fourth{};

  // Sums of a block, with the signs that its numbers have in block 0.
  [[gnu::always_inline]] void add(const LaneSums& block, const BlockSigns& signs) {
    sum += block.sum;
    squares += block.squares;
    first += block.first * signs.of[0];
    second += block.second * signs.of[1];
    third += block.third * signs.of[2];
    fourth += block.fourth * signs.of[3];
  }

  void add_to(ElementSums* sums) const {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums->sum += sum[lane];
      sums->squares += squares[lane];
      sums->projections[0] += sign_pattern::lane_sign(0, lane) * first[lane];
      sums->projections[1] += sign_pattern::lane_sign(1, lane) * second[lane];
      sums->projections[2] += sign_pattern::lane_sign(2, lane) * third[lane];
      sums->projections[3] += sign_pattern::lane_sign(3, lane) * fourth[lane];
    }
  }
};

// A block of kBlock numbers.
OP_TOOLS_WIDE void add_block(const double* numbers, const BlockSigns& signs, LaneSums* lanes) {
  static_assert(kProjections == 4);
  LaneSums here;
  [&]<size_t... Pattern>(std::index_sequence<Pattern...>) __attribute__((always_inline)) {
    (
        [&]() __attribute__((always_inline)) {
          constexpr GroupSigns::Run kRun = kGroupSigns.runs[Pattern];
          Doubles part{}, squares{};  // of their own: no addition waits for the one before
#pragma GCC unroll 64
          for (int64_t i = kRun.begin; i < kRun.end; ++i) {
            const Doubles x = *reinterpret_cast<const Doubles*>(numbers + kGroupSigns.sorted[i] * kLanes);
            part += x;
            squares += x * x;
          }
          here.squares += squares;
          here.sum += part;
          here.first += part * kRun.signs[0];
          here.second += part * kRun.signs[1];
          here.third += part * kRun.signs[2];
          here.fourth += part * kRun.signs[3];
        }(),
        ...);
  }
  (std::make_index_sequence<1 << kProjections>());
  lanes->add(here, signs);
}

// The last block, of fewer numbers. What is behind them up to a multiple of kLanes is overwritten.
OP_TOOLS_WIDE void add_part_of_block(double* numbers, int64_t n, const BlockSigns& signs, LaneSums* lanes) {
  for (int64_t i = n; i % kLanes; ++i) numbers[i] = 0;
  LaneSums here;
  for (int64_t group = 0; group * kLanes < n; ++group) {
    const Doubles x = *reinterpret_cast<const Doubles*>(numbers + group * kLanes);
    const double* const of_group = kGroupSigns.of[group];
    here.sum += x;
    here.squares += x * x;
    here.first += x * of_group[0];
    here.second += x * of_group[1];
    here.third += x * of_group[2];
    here.fourth += x * of_group[3];
  }
  lanes->add(here, signs);
}

// Minimum, maximum and zeros by lane, over many blocks. A NaN is less than nothing.
template <class T, class Integer>
struct LaneOrder {
  static constexpr int64_t kWide = 64 / sizeof(T), kSets = 4;  // sets: no comparison waits for the one before
  static constexpr T kMost = std::numeric_limits<T>::infinity();
  typedef T Vector __attribute__((vector_size(64)));
  typedef T Loaded __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
  typedef Integer Counts __attribute__((vector_size(64)));
  Vector min[kSets], max[kSets];
  Counts zero[kSets]{};

  LaneOrder() {
    for (int64_t set = 0; set < kSets; ++set) min[set] = Vector{} + kMost, max[set] = Vector{} - kMost;
  }

  [[gnu::always_inline]] void add(const T* numbers, int64_t n) {
    LaneOrder here = *this;
    int64_t i = 0;
    for (; i + kSets * kWide <= n; i += kSets * kWide) {
#pragma GCC unroll 4
      for (int64_t set = 0; set < kSets; ++set) {
        const Vector x = *reinterpret_cast<const Loaded*>(numbers + i + set * kWide);
        here.min[set] = x < here.min[set] ? x : here.min[set];
        here.max[set] = x > here.max[set] ? x : here.max[set];
        here.zero[set] -= x == Vector{};
      }
    }
    for (; i < n; ++i) {
      T &least = reinterpret_cast<T&>(here.min[0]), &most = reinterpret_cast<T&>(here.max[0]);
      least = numbers[i] < least ? numbers[i] : least;
      most = numbers[i] > most ? numbers[i] : most;
      reinterpret_cast<Integer&>(here.zero[0]) += numbers[i] == 0;
    }
    *this = here;
  }

  void add_to(ElementSums* sums) const {
    LaneOrder all = *this;
    for (int64_t set = 1; set < kSets; ++set) {
      all.min[0] = all.min[set] < all.min[0] ? all.min[set] : all.min[0];
      all.max[0] = all.max[set] > all.max[0] ? all.max[set] : all.max[0];
      all.zero[0] += all.zero[set];
    }
    T least = kMost, most = -kMost;
    Integer zeros = 0;
    for (int64_t lane = 0; lane < kWide; ++lane) {
      least = std::min(least, all.min[0][lane]);
      most = std::max(most, all.max[0][lane]);
      zeros += all.zero[0][lane];
    }
    sums->min = least;
    sums->max = most;
    sums->zero = zeros;
  }
};
using Order32 = LaneOrder<float, int32_t>;
using Order64 = LaneOrder<double, int64_t>;
OP_TOOLS_WIDE void add_order(const float* numbers, int64_t n, Order32* order) {
  order->add(numbers, n);
}
OP_TOOLS_WIDE void add_order(const double* numbers, int64_t n, Order64* order) {
  order->add(numbers, n);
}

OP_TOOLS_WIDE void count_special(const double* numbers, int64_t n, ElementSums* sums) {
  int64_t nan = 0, inf = 0;
  for (int64_t i = 0; i < n; ++i) {
    nan += numbers[i] != numbers[i];
    inf += std::fabs(numbers[i]) == kInfinity;
  }
  sums->nan += nan;
  sums->inf += inf;
}

// What is of |x| or of both parts together.
void add_complex(const double* parts, int64_t n, ElementSums* sums) {
  for (int64_t i = 0; i < n; ++i) {
    const double real = parts[2 * i], imaginary = parts[2 * i + 1], size = std::hypot(real, imaginary);
    sums->min = size < sums->min || std::isnan(size) ? size : sums->min;
    sums->max = size > sums->max || std::isnan(size) ? size : sums->max;
    sums->sum += size;
    sums->nan += std::isnan(real) || std::isnan(imaginary);
    sums->inf += std::isinf(real) || std::isinf(imaginary);
    sums->zero += real == 0 && imaginary == 0;
  }
}

void add_exact(const int64_t* numbers, int64_t n, int64_t turn, ElementSums* sums) {
  for (int64_t i = 0; i < n; ++i) {
    sums->exact_min = std::min(sums->exact_min, numbers[i] ^ turn);
    sums->exact_max = std::max(sums->exact_max, numbers[i] ^ turn);
  }
}

[[gnu::always_inline]] inline uint64_t mixed_word(uint64_t word, uint64_t placed) {
  uint64_t bits = word * kMixWord + placed;
  bits ^= static_cast<uint64_t>(static_cast<int64_t>(bits) >> 32);
  bits *= kMixWord;
  return bits ^ static_cast<uint64_t>(static_cast<int64_t>(bits) >> 29);
}

// Words of eight bytes, wherever they are; the first is number `first` of the tensor.
OP_TOOLS_WIDE uint64_t hash_words(const void* data, int64_t first, int64_t n) {
  typedef int64_t Word __attribute__((aligned(1), may_alias));
  const Word* const words = static_cast<const Word*>(data);
  uint64_t sum = 0, placed = static_cast<uint64_t>(first) * kMixPlace;
  for (int64_t i = 0; i < n; ++i) {
    placed += kMixPlace;
    sum += mixed_word(static_cast<uint64_t>(words[i]), placed);
  }
  return sum;
}

// Of the bytes that are those of the tensor from `first` on, which is a multiple of eight; the last word is filled up
// with zeros.
uint64_t hash_of(const void* data, int64_t first, int64_t bytes) {
  const int64_t words = bytes / kWordBytes, left = bytes % kWordBytes;
  uint64_t sum = hash_words(data, first / kWordBytes, words);
  if (left > 0) {
    char last[kWordBytes] = {};
    const int64_t begin = first + words * kWordBytes;
    std::memcpy(last, static_cast<const char*>(data) + words * kWordBytes, static_cast<size_t>(left));
    uint64_t word = 0;
    std::memcpy(&word, last, sizeof word);
    sum += mixed_word(word, (static_cast<uint64_t>(begin / kWordBytes) + 1) * kMixPlace);
  }
  return sum;
}

void merge(const ElementSums& from, ElementSums* to) {
  to->min = from.min < to->min || std::isnan(from.min) ? from.min : to->min;
  to->max = from.max > to->max || std::isnan(from.max) ? from.max : to->max;
  to->sum += from.sum;
  to->squares += from.squares;
  for (size_t p = 0; p < from.projections.size(); ++p) to->projections[p] += from.projections[p];
  to->nan += from.nan;
  to->inf += from.inf;
  to->zero += from.zero;
  to->exact_min = std::min(to->exact_min, from.exact_min);
  to->exact_max = std::max(to->exact_max, from.exact_max);
  to->hash += from.hash;
}

template <class T>
char* gather(const char* from, int64_t stride, int64_t n, char* to) {
  const T* const elements = reinterpret_cast<const T*>(from);
  T* const gathered = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) gathered[i] = elements[i * stride];
  return to + n * static_cast<int64_t>(sizeof(T));
}

// The elements of a strided tensor in the order of their indices.
class Elements {
 public:
  explicit Elements(const at::Tensor& tensor)
      : data_(static_cast<const char*>(tensor.const_data_ptr())),
        element_(static_cast<int64_t>(tensor.element_size())) {
    if (!tensor.is_contiguous()) dims_.emplace(tensor.sizes(), tensor.strides());
  }

  // `n` elements from `first` on: where they are, or copied to `buffer`.
  const void* find(int64_t first, int64_t n, char* buffer) const {
    if (!dims_ || dims_->sizes.empty()) return data_ + first * element_;
    const std::vector<int64_t>&sizes = dims_->sizes, &strides = dims_->strides;
    const size_t last = sizes.size() - 1;
    std::vector<int64_t> index(sizes.size());
    int64_t place = 0, left = first;
    for (size_t i = last + 1; i-- > 0; left /= sizes[i]) {
      index[i] = left % sizes[i];
      place += index[i] * strides[i];
    }
    for (char* to = buffer;;) {
      const int64_t run = std::min(n, sizes[last] - index[last]);
      to = copy(data_ + place * element_, strides[last], run, to);
      n -= run;
      if (n == 0) return buffer;
      place -= index[last] * strides[last];
      index[last] = 0;
      for (size_t i = last; i-- > 0;) {  // the next row
        place += strides[i];
        if (++index[i] < sizes[i]) break;
        place -= index[i] * strides[i];
        index[i] = 0;
      }
    }
  }

 private:
  char* copy(const char* from, int64_t stride, int64_t n, char* to) const {
    if (stride == 1) {
      std::memcpy(to, from, static_cast<size_t>(n * element_));
      return to + n * element_;
    }
    switch (element_) {
      case 1:
        return gather<uint8_t>(from, stride, n, to);
      case 2:
        return gather<uint16_t>(from, stride, n, to);
      case 4:
        return gather<uint32_t>(from, stride, n, to);
      case 8:
        return gather<uint64_t>(from, stride, n, to);
      default:
        return gather<std::array<uint64_t, 2>>(from, stride, n, to);
    }
  }

  const char* const data_;
  const int64_t element_;
  std::optional<MergedDims> dims_;  // nothing: contiguous
};

// Elements of one dtype, block by block.
class Blocks {
 public:
  explicit Blocks(const at::Tensor& tensor)
      : elements_(tensor),
        dtype_(tensor.scalar_type()),
        is_complex_(c10::isComplexType(dtype_)),
        element_(static_cast<int64_t>(c10::elementSize(dtype_))) {}

  // Elements `first` to `last`; `first` begins a block.
  ElementSums sums(int64_t first, int64_t last) const {
    ElementSums all;
    LaneSums lanes;
    Order32 order32;
    Order64 order64;
    each_block(first, last, [&](double* numbers, const void* data, int64_t at, int64_t n) {
      const BlockSigns signs(at / per_block());
      n == per_block() ? add_block(numbers, signs, &lanes) : add_part_of_block(numbers, n * parts(), signs, &lanes);
      if (is_complex_) {
        add_complex(numbers, n, &all);
      } else if (dtype_ == c10::ScalarType::Float) {
        add_order(static_cast<const float*>(data), n, &order32);
      } else {
        add_order(numbers, n, &order64);
      }
      if (is_wide()) add_exact(static_cast<const int64_t*>(data), n, turn(), &all);
      all.hash += hash_of(data, at * element_, n * element_);
    });
    if (is_complex_) lanes.sum = Doubles{};  // of the parts
    lanes.add_to(&all);
    if (dtype_ == c10::ScalarType::Float) {
      order32.add_to(&all);
    } else if (!is_complex_) {
      order64.add_to(&all);
    }
    if (!is_complex_ && !std::isfinite(all.squares)) {
      each_block(first, last,
                 [&](const double* numbers, const void*, int64_t, int64_t n) { count_special(numbers, n, &all); });
    }
    return all;
  }

 private:
  int64_t parts() const { return is_complex_ ? 2 : 1; }
  int64_t per_block() const { return kBlock / parts(); }
  bool is_wide() const { return dtype_ == c10::ScalarType::Long || dtype_ == c10::ScalarType::UInt64; }
  int64_t turn() const { return dtype_ == c10::ScalarType::UInt64 ? std::numeric_limits<int64_t>::min() : 0; }

  // visit(numbers, the elements as they are, number of the first, how many)
  template <class Visit>
  [[gnu::always_inline]] void each_block(int64_t first, int64_t last, Visit&& visit) const {
    alignas(64) double numbers[kBlock];
    alignas(64) char buffer[kBlock * sizeof(double)];
    for (; first < last; first += per_block()) {
      const int64_t n = std::min(per_block(), last - first);
      const void* const data = elements_.find(first, n, buffer);
      load_float64(dtype_, data, 0, n, numbers);
      visit(numbers, data, first, n);
    }
  }

  const Elements elements_;
  const c10::ScalarType dtype_;
  const bool is_complex_;
  const int64_t element_;
};

}  // namespace

// Blocks make tasks, tasks make the whole, in order: few additions in a row, so little rounding, and numbers that do
// not depend on the threads.
ElementSums element_sums(const at::Tensor& tensor) {
  const int64_t numel = tensor.numel(), tasks = (numel + kPerTask - 1) / kPerTask;
  const Blocks blocks(tensor);
  if (tasks <= 1) return blocks.sums(0, numel);
  std::vector<ElementSums> found(static_cast<size_t>(tasks));
  parallel_for(tasks, kPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      found[static_cast<size_t>(task)] = blocks.sums(task * kPerTask, std::min(numel, (task + 1) * kPerTask));
    }
  });
  ElementSums all;
  for (const ElementSums& one : found) merge(one, &all);
  return all;
}

}  // namespace op_tools
