#include "tensor/element_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tensor/element_hash.h"
#include "tensor/float_conversion.h"
#include "tensor/parallel_for.h"
#include "tensor/strided_elements.h"

namespace op_tools {
namespace {

using sign_pattern::kLanes;
using sign_pattern::kPatterns;
using sign_pattern::kProjections;

constexpr int64_t kBlock = sign_pattern::kBlock;  // numbers
constexpr int64_t kPart = 4 * kBlock;             // stays in the first-level cache, also as float64
constexpr int64_t kPerTask = 32 * kPart;

typedef double Doubles __attribute__((vector_size(sizeof(double) * kLanes)));

// Groups sorted by their pattern of signs: those with the same pattern are added up together.
struct Groups {
  int64_t sorted[sign_pattern::kGroups];
  int64_t begin[kPatterns + 1];  // by pattern: its first in `sorted`
};
constexpr Groups groups_by_pattern() {
  Groups groups{};
  int64_t count = 0;
  for (uint64_t pattern = 0; pattern < kPatterns; ++pattern) {
    groups.begin[pattern] = count;
    for (int64_t group = 0; group < sign_pattern::kGroups; ++group) {
      if (sign_pattern::group_pattern(group) == pattern) groups.sorted[count++] = group;
    }
  }
  groups.begin[kPatterns] = count;
  return groups;
}
constexpr Groups kGroups = groups_by_pattern();

// Sums by lane and by pattern of signs, over many blocks.
struct LaneSums {
  static constexpr size_t kSets = 4;  // no addition waits for its predecessor
  Doubles sum[kPatterns]{}, squares[kSets]{};
};
OP_TOOLS_WIDE void add_lanes(const LaneSums& lanes, ElementSums* sums) {
  Doubles sum{}, squares{}, signed_sums[kProjections]{};
  for (const Doubles& part : lanes.squares) squares += part;
  for (uint64_t pattern = 0; pattern < kPatterns; ++pattern) {
    sum += lanes.sum[pattern];
    for (int64_t p = 0; p < kProjections; ++p) {
      signed_sums[p] += lanes.sum[pattern] * sign_pattern::pattern_sign(p, pattern);
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    sums->sum += sum[lane];
    sums->squares += squares[lane];
    for (int64_t p = 0; p < kProjections; ++p) {
      sums->projections[static_cast<size_t>(p)] += sign_pattern::lane_sign(p, lane) * signed_sums[p][lane];
    }
  }
}

// A vector of float64, from numbers of either kind. Written so, it is a single instruction.
template <class T>
[[gnu::always_inline]] inline void load(const T* numbers, Doubles* to) {
  const auto number = [&](int64_t lane) __attribute__((always_inline)) {
    return static_cast<double>(numbers[lane]);
  };
  static_assert(kLanes == 8);
  *to = Doubles{number(0), number(1), number(2), number(3), number(4), number(5), number(6), number(7)};
}

// A block of kBlock numbers, whose pattern is `turned`.
template <class T>
[[gnu::always_inline]] inline void add_whole(const T* numbers, uint64_t turned, LaneSums* lanes) {
  [&]<size_t... Pattern>(std::index_sequence<Pattern...>) __attribute__((always_inline)) {
    (
        [&]() __attribute__((always_inline)) {
          Doubles part{}, squares = lanes->squares[Pattern % LaneSums::kSets];
#pragma GCC unroll 64
          for (int64_t i = kGroups.begin[Pattern]; i < kGroups.begin[Pattern + 1]; ++i) {
            Doubles x;
            load(numbers + kGroups.sorted[i] * kLanes, &x);
            part += x;
            squares += x * x;
          }
          lanes->sum[Pattern ^ turned] += part;
          lanes->squares[Pattern % LaneSums::kSets] = squares;
        }(),
        ...);
  }
  (std::make_index_sequence<kPatterns>());
}
OP_TOOLS_WIDE void add_block(const float* numbers, uint64_t turned, LaneSums* lanes) {
  add_whole(numbers, turned, lanes);
}
OP_TOOLS_WIDE void add_block(const double* numbers, uint64_t turned, LaneSums* lanes) {
  add_whole(numbers, turned, lanes);
}

// The last block, of fewer numbers.
template <class T>
[[gnu::always_inline]] inline void add_part(const T* numbers, int64_t n, uint64_t turned, LaneSums* lanes) {
  alignas(64) T last[kLanes] = {};
  Doubles squares = lanes->squares[0];
  for (int64_t group = 0; group * kLanes < n; ++group) {
    const T* from = numbers + group * kLanes;
    if (const int64_t left = n - group * kLanes; left < kLanes) {
      std::memcpy(last, from, static_cast<size_t>(left) * sizeof(T));
      from = last;
    }
    Doubles x;
    load(from, &x);
    lanes->sum[sign_pattern::group_pattern(group) ^ turned] += x;
    squares += x * x;
  }
  lanes->squares[0] = squares;
}
OP_TOOLS_WIDE void add_part_of_block(const float* numbers, int64_t n, uint64_t turned, LaneSums* lanes) {
  add_part(numbers, n, turned, lanes);
}
OP_TOOLS_WIDE void add_part_of_block(const double* numbers, int64_t n, uint64_t turned, LaneSums* lanes) {
  add_part(numbers, n, turned, lanes);
}

// `n` numbers; `block`: number of the first block.
template <class T>
void add_blocks(const T* numbers, int64_t block, int64_t n, LaneSums* lanes) {
  for (; n >= kBlock; n -= kBlock, numbers += kBlock) {
    add_block(numbers, sign_pattern::block_pattern(block++), lanes);
  }
  if (n > 0) add_part_of_block(numbers, n, sign_pattern::block_pattern(block), lanes);
}

// Minimum, maximum and zeros by lane, over many blocks. A NaN is less than nothing.
template <class T, class Integer>
struct LaneOrder {
  static constexpr int64_t kWide = 64 / sizeof(T), kSets = 4;  // sets: no comparison waits for its predecessor
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
    LaneOrder merged = *this;
    for (int64_t set = 1; set < kSets; ++set) {
      merged.min[0] = merged.min[set] < merged.min[0] ? merged.min[set] : merged.min[0];
      merged.max[0] = merged.max[set] > merged.max[0] ? merged.max[set] : merged.max[0];
      merged.zero[0] += merged.zero[set];
    }
    T least = kMost, most = -kMost;
    Integer zeros = 0;
    for (int64_t lane = 0; lane < kWide; ++lane) {
      least = std::min(least, merged.min[0][lane]);
      most = std::max(most, merged.max[0][lane]);
      zeros += merged.zero[0][lane];
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

template <class T>
[[gnu::always_inline]] inline void count_nonfinite(const T* numbers, int64_t n, ElementSums* sums) {
  int64_t nan = 0, inf = 0;
  for (int64_t i = 0; i < n; ++i) {
    nan += numbers[i] != numbers[i];
    inf += std::fabs(numbers[i]) == std::numeric_limits<T>::infinity();
  }
  sums->nan += nan;
  sums->inf += inf;
}
template <class T>
[[gnu::always_inline]] inline void zero_others(const T* numbers, int64_t n, T* to) {
  constexpr T kMost = sign_pattern::kMost;
  for (int64_t i = 0; i < n; ++i) to[i] = std::fabs(numbers[i]) <= kMost ? numbers[i] : 0;
}
OP_TOOLS_WIDE void keep_projected(const float* numbers, int64_t n, float* to) {
  zero_others(numbers, n, to);
}
OP_TOOLS_WIDE void keep_projected(const double* numbers, int64_t n, double* to) {
  zero_others(numbers, n, to);
}
OP_TOOLS_WIDE void count_special(const float* numbers, int64_t n, ElementSums* sums) {
  count_nonfinite(numbers, n, sums);
}
OP_TOOLS_WIDE void count_special(const double* numbers, int64_t n, ElementSums* sums) {
  count_nonfinite(numbers, n, sums);
}

// The sums of |x| and of both parts together.
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

OP_TOOLS_WIDE void add_exact(const int64_t* numbers, int64_t n, int64_t turn, ElementSums* sums) {
  int64_t least = sums->exact_min, most = sums->exact_max;
  for (int64_t i = 0; i < n; ++i) {
    least = std::min(least, numbers[i] ^ turn);
    most = std::max(most, numbers[i] ^ turn);
  }
  sums->exact_min = least;
  sums->exact_max = most;
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

// Elements of a dtype, part by part.
class Parts {
 public:
  explicit Parts(const at::Tensor& tensor)
      : elements_(tensor),
        dtype_(tensor.scalar_type()),
        is_complex_(c10::isComplexType(dtype_)),
        element_(static_cast<int64_t>(c10::elementSize(dtype_))) {}

  // Elements `first` to `last`; `first` begins a part.
  ElementSums sums(int64_t first, int64_t last) const {
    if (is_complex_) return complex_sums(first, last);
    return has_float32(dtype_) ? real_sums<float, Order32>(first, last) : real_sums<double, Order64>(first, last);
  }

  uint64_t hash(int64_t first, int64_t last) const {
    uint64_t sum = 0;
    each_part(first, last, is_complex_ ? kPart / 2 : kPart, [&](const void* data, int64_t at, int64_t n) {
      sum += element_hash::sum_of(data, at * element_, n * element_);
    });
    return sum;
  }

 private:
  bool is_wide() const { return dtype_ == c10::ScalarType::Long || dtype_ == c10::ScalarType::UInt64; }
  int64_t turn() const { return dtype_ == c10::ScalarType::UInt64 ? std::numeric_limits<int64_t>::min() : 0; }

  template <class Number, class Order>
  ElementSums real_sums(int64_t first, int64_t last) const {
    ElementSums sums;
    LaneSums lanes;
    Order order;
    each_part_as<Number>(first, last, kPart, [&](const Number* numbers, const void* data, int64_t at, int64_t n) {
      add_blocks(numbers, at / kBlock, n, &lanes);
      add_order(numbers, n, &order);
      if (is_wide()) add_exact(static_cast<const int64_t*>(data), n, turn(), &sums);
      sums.hash += element_hash::sum_of(data, at * element_, n * element_);
    });
    add_lanes(lanes, &sums);
    order.add_to(&sums);
    if (!std::isfinite(sums.squares)) {
      each_part_as<Number>(first, last, kPart, [&](const Number* numbers, const void*, int64_t, int64_t n) {
        count_special(numbers, n, &sums);
      });
    }
    if (has_large(sums)) sums.projections = plain_projections<Number>(first, last, 1);
    return sums;
  }

  // There may be numbers that projections leave out.
  static bool has_large(const ElementSums& sums) {
    return !(sums.squares <= sign_pattern::kMost * sign_pattern::kMost);
  }

  // Without these. `parts`: numbers in an element.
  template <class Number>
  std::array<double, kProjections> plain_projections(int64_t first, int64_t last, int64_t parts) const {
    LaneSums lanes;
    each_part_as<Number>(first, last, kPart / parts, [&](const Number* numbers, const void*, int64_t at, int64_t n) {
      alignas(64) Number finite[kPart];
      keep_projected(numbers, parts * n, finite);
      add_blocks(finite, parts * at / kBlock, parts * n, &lanes);
    });
    ElementSums sums;
    add_lanes(lanes, &sums);
    return sums.projections;
  }

  ElementSums complex_sums(int64_t first, int64_t last) const {
    ElementSums sums;
    LaneSums lanes;
    each_part_as<double>(first, last, kPart / 2, [&](const double* numbers, const void* data, int64_t at, int64_t n) {
      add_blocks(numbers, 2 * at / kBlock, 2 * n, &lanes);
      add_complex(numbers, n, &sums);
      sums.hash += element_hash::sum_of(data, at * element_, n * element_);
    });
    const double sizes = sums.sum;
    add_lanes(lanes, &sums);
    sums.sum = sizes;  // not of the parts
    if (has_large(sums)) sums.projections = plain_projections<double>(first, last, 2);
    return sums;
  }

  // visit(the elements as they are, number of the first, how many)
  template <class Visit>
  [[gnu::always_inline]] void each_part(int64_t first, int64_t last, int64_t per_part, Visit&& visit) const {
    alignas(64) char buffer[kPart * sizeof(double)];
    for (; first < last; first += per_part) {
      const int64_t n = std::min(per_part, last - first);
      visit(elements_.find(first, n, buffer), first, n);
    }
  }
  // visit(numbers, the elements as they are, number of the first, how many)
  template <class Number, class Visit>
  [[gnu::always_inline]] void each_part_as(int64_t first, int64_t last, int64_t per_part, Visit&& visit) const {
    alignas(64) Number numbers[kPart];
    each_part(
        first, last, per_part, [&](const void* data, int64_t at, int64_t n) __attribute__((always_inline)) {
          visit(numbers_of(data, n, numbers), data, at, n);
        });
  }

  const float* numbers_of(const void* data, int64_t n, float* buffer) const {
    if (dtype_ == c10::ScalarType::Float) return static_cast<const float*>(data);
    load_float32(dtype_, data, 0, n, buffer);
    return buffer;
  }
  const double* numbers_of(const void* data, int64_t n, double* buffer) const {
    if (dtype_ == c10::ScalarType::Double) return static_cast<const double*>(data);
    load_float64(dtype_, data, 0, n, buffer);
    return buffer;
  }

  const StridedElements elements_;
  const c10::ScalarType dtype_;
  const bool is_complex_;
  const int64_t element_;
};

// of(first, last) of the tensor's elements, task by task. Parts make tasks, tasks make the whole, in order: few
// additions in a row, so little rounding, and numbers that do not depend on the threads.
template <class Result, class Of>
std::vector<Result> by_task(int64_t numel, const Of& of) {
  const int64_t tasks = (numel + kPerTask - 1) / kPerTask;
  std::vector<Result> results(static_cast<size_t>(tasks));
  parallel_for(tasks, kPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      results[static_cast<size_t>(task)] = of(task * kPerTask, std::min(numel, (task + 1) * kPerTask));
    }
  });
  return results;
}

}  // namespace

ElementSums element_sums(const at::Tensor& tensor) {
  const Parts parts(tensor);
  const auto sums = [&](int64_t first, int64_t last) { return parts.sums(first, last); };
  if (tensor.numel() <= kPerTask) return sums(0, tensor.numel());
  ElementSums all;
  for (const ElementSums& task : by_task<ElementSums>(tensor.numel(), sums)) merge(task, &all);
  return all;
}

uint64_t element_hash_sum(const at::Tensor& tensor) {
  const Parts parts(tensor);
  const auto hash = [&](int64_t first, int64_t last) { return parts.hash(first, last); };
  if (tensor.numel() <= kPerTask) return hash(0, tensor.numel());
  uint64_t all = 0;
  for (const uint64_t task : by_task<uint64_t>(tensor.numel(), hash)) all += task;
  return all;
}

}  // namespace op_tools
