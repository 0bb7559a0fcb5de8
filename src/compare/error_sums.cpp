#include "compare/error_sums.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "hooks/all_cores.h"
#include "hooks/doubles.h"

namespace op_tools {
namespace {

// Elements are widened to doubles block by block, so that one loop over doubles serves all dtypes. A block stays in the
// first-level cache: what only some blocks need is a second loop over it.
constexpr int64_t kBlock = 512;
constexpr int64_t kBlocksPerTask = 128;

// So many doubles at once. Eight need AVX-512: GCC 12 takes seven times as long where it has to make them of AVX2.
template <int kWidth>
struct Vector {
  static constexpr int64_t kLanes = kWidth;
  typedef double Doubles __attribute__((vector_size(8 * kWidth)));
  typedef int64_t Bits __attribute__((vector_size(8 * kWidth)));
};
constexpr int64_t kMostLanes = 8;  // blocks are filled up to a multiple of it

// A function for each kind of processor; the one that fits is chosen when the library is loaded.
#ifdef OP_TOOLS_HAS_WIDE
#define OP_TOOLS_BY_WIDTH(declaration, loop)              \
  __attribute__((target("arch=x86-64-v4"))) declaration { \
    return loop<Vector<8>>(block);                        \
  }                                                       \
  __attribute__((target("arch=x86-64-v3"))) declaration { \
    return loop<Vector<4>>(block);                        \
  }                                                       \
  __attribute__((target("default"))) declaration {        \
    return loop<Vector<4>>(block);                        \
  }
#else
#define OP_TOOLS_BY_WIDTH(declaration, loop) \
  declaration {                              \
    return loop<Vector<4>>(block);           \
  }
#endif

constexpr int64_t kExponent = int64_t{0x7FF} << 52;
constexpr int64_t kSign = std::numeric_limits<int64_t>::min();
constexpr int64_t kInverse = int64_t{2046} << 52;  // minus the bits of a power of two: the bits of its inverse

struct Block {
  alignas(64) double a[2 * kBlock];  // result; a complex element is two numbers
  alignas(64) double b[2 * kBlock];  // golden
  alignas(64) double d[kBlock];      // |a - b|, where it is asked for
  alignas(64) double m[kBlock];      // |b|, likewise
  int64_t n = 0;                     // how many of them count, filled up with zeros, which change nothing
  double least = 0;                  // as in SumPlan
  Tolerance tolerance;
  double max_rel = 0;  // the largest quotient d / m so far
};

// |a - b| of integers, subtracted as unsigned numbers: no overflow, no wrap.
template <class T>
void subtract(const void* a, const void* b, int64_t first, int64_t n, double* d) {
  const T* left = static_cast<const T*>(a) + first;
  const T* right = static_cast<const T*>(b) + first;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t l = static_cast<uint64_t>(left[i]), r = static_cast<uint64_t>(right[i]);
    d[i] = static_cast<double>(left[i] > right[i] ? l - r : r - l);
  }
}

void subtract_exactly(c10::ScalarType dtype, const void* a, const void* b, int64_t first, int64_t n, double* d) {
  switch (dtype) {
#define OP_TOOLS_CASE(type, name) \
  case c10::ScalarType::name:     \
    return subtract<type>(a, b, first, n, d);
    OP_TOOLS_WHOLE_NUMBERS(OP_TOOLS_CASE)
#undef OP_TOOLS_CASE
    default:
      return;
  }
}

template <class V>
const typename V::Doubles& lanes(const double* at) {
  return *reinterpret_cast<const typename V::Doubles*>(at);
}
template <class V>
typename V::Doubles& lanes(double* at) {
  return *reinterpret_cast<typename V::Doubles*>(at);
}

template <class V, class Lanes, class Add>
[[gnu::always_inline]] inline auto folded(const Lanes& value, Add&& add) {
  auto sum = value[0];
  for (int64_t i = 1; i < V::kLanes; ++i) sum = add(sum, value[i]);
  return sum;
}
template <class V>
[[gnu::always_inline]] inline double sum_of(const typename V::Doubles& value) {
  return folded<V>(value, [](double x, double y) { return x + y; });
}
template <class V>
[[gnu::always_inline]] inline double max_of(const typename V::Doubles& value) {
  return folded<V>(value, [](double x, double y) { return std::max(x, y); });
}

// By reference: how wide vectors are handed over depends on the processor.
template <class V>
[[gnu::always_inline]] inline void drop_sign(typename V::Doubles& value) {
  value = reinterpret_cast<typename V::Doubles>(reinterpret_cast<typename V::Bits>(value) & ~kSign);
}

// d and m of real numbers.
template <class V>
[[gnu::always_inline]] inline void make_distances(Block& block) {
  for (int64_t i = 0; i < block.n; i += V::kLanes) {
    typename V::Doubles& difference = lanes<V>(block.d + i);
    typename V::Doubles& size = lanes<V>(block.m + i);
    size = lanes<V>(block.b + i);
    difference = lanes<V>(block.a + i) - size;
    drop_sign<V>(difference);
    drop_sign<V>(size);
  }
}

// A division for each element would be half of the work, and few elements raise the largest quotient.
template <class V>
[[gnu::always_inline]] inline double raise_quotient(Block& block) {
  typename V::Doubles largest = typename V::Doubles{} + block.max_rel;
  for (int64_t i = 0; i < block.n; i += V::kLanes) {
    // 0 / 0 is no number and greater than none.
    const typename V::Doubles relative = lanes<V>(block.d + i) / lanes<V>(block.m + i);
    largest = relative > largest ? relative : largest;
  }
  return max_of<V>(largest);
}

// What one loop over a block finds.
struct Found {
  double max_d, sum_d, sum_d2, max_ulp, sum_ulp, max_m, ab, aa, bb;
  int64_t outside;
  bool quotient;  // max_rel grows
};

// All but the largest quotient. kReal: d and m are made here of a and b, and the products are summed.
template <bool kReal, class V>
[[gnu::always_inline]] inline Found look_at(const Block& block) {
  using Doubles = typename V::Doubles;
  using Bits = typename V::Bits;
  const Bits exponent = Bits{} + kExponent, inverse = Bits{} + kInverse;
  const Doubles least = Doubles{} + block.least, max_rel = Doubles{} + block.max_rel;
  const Doubles zero{}, one = Doubles{} + 1.0;
  const Doubles atol = Doubles{} + block.tolerance.atol, rtol = Doubles{} + block.tolerance.rtol;
  Doubles max_d{}, sum_d{}, sum_d2{}, max_ulp{}, sum_ulp{}, max_m{}, ab{}, aa{}, bb{}, outside{}, excess{};
  for (int64_t i = 0; i < block.n; i += V::kLanes) {
    Doubles difference, size;
    if constexpr (kReal) {
      const Doubles result = lanes<V>(block.a + i), golden = lanes<V>(block.b + i);
      difference = result - golden;
      size = golden;
      drop_sign<V>(difference);
      drop_sign<V>(size);
      ab += result * golden;
      aa += result * result;
      bb += golden * golden;
    } else {
      difference = lanes<V>(block.d + i);
      size = lanes<V>(block.m + i);
    }
    max_d = difference > max_d ? difference : max_d;
    max_m = size > max_m ? size : max_m;
    sum_d += difference;
    sum_d2 += difference * difference;
    const Doubles over = difference - max_rel * size;  // infinity times 0 is no number and over nothing
    excess = over > excess ? over : excess;
    const Doubles scale = size > least ? size : least;
    const Doubles ulp = difference * reinterpret_cast<Doubles>(inverse - (reinterpret_cast<Bits>(scale) & exponent));
    max_ulp = ulp > max_ulp ? ulp : max_ulp;
    sum_ulp += ulp;
    outside += difference > atol + rtol * size ? one : zero;
  }
  return {max_of<V>(max_d),     sum_of<V>(sum_d),
          sum_of<V>(sum_d2),    max_of<V>(max_ulp),
          sum_of<V>(sum_ulp),   max_of<V>(max_m),
          sum_of<V>(ab),        sum_of<V>(aa),
          sum_of<V>(bb),        static_cast<int64_t>(sum_of<V>(outside)),
          max_of<V>(excess) > 0};
}
template <class V>
[[gnu::always_inline]] inline Found look_at_pairs(const Block& block) {
  return look_at<true, V>(block);
}
template <class V>
[[gnu::always_inline]] inline Found look_at_sizes(const Block& block) {
  return look_at<false, V>(block);
}

struct Sizes {
  double sum_of_squares, largest;
};

// Where both sides have the same bits, only sizes are left to be known.
template <class V>
[[gnu::always_inline]] inline Sizes add_sizes(const Block& block) {
  typename V::Doubles squares{}, largest{};
  for (int64_t i = 0; i < block.n; i += V::kLanes) {
    typename V::Doubles size = lanes<V>(block.b + i);
    drop_sign<V>(size);
    largest = size > largest ? size : largest;
    squares += size * size;
  }
  return {sum_of<V>(squares), max_of<V>(largest)};
}

OP_TOOLS_BY_WIDTH(void distances(Block& block), make_distances)
OP_TOOLS_BY_WIDTH(double max_quotient(Block& block), raise_quotient)
OP_TOOLS_BY_WIDTH(Found look_at_real(const Block& block), look_at_pairs)
OP_TOOLS_BY_WIDTH(Found look_at_distances(const Block& block), look_at_sizes)
OP_TOOLS_BY_WIDTH(Sizes sizes_of(const Block& block), add_sizes)

double as_dtype(double golden, double limit) {
  return std::fabs(golden) > limit ? std::copysign(std::numeric_limits<double>::infinity(), golden) : golden;
}

enum class Special { kNone, kNan, kPositive, kNegative };

Special special_of(const double* parts, int count, double limit) {
  Special found = Special::kNone;
  for (int i = 0; i < count; ++i) {
    const double part = as_dtype(parts[i], limit);
    if (std::isnan(part)) return Special::kNan;
    if (std::isinf(part) && found == Special::kNone) found = part > 0 ? Special::kPositive : Special::kNegative;
  }
  return found;
}

void count(Special special, NonFinite* counts) {
  if (special == Special::kNan) ++counts->nan;
  if (special == Special::kPositive) ++counts->pos_inf;
  if (special == Special::kNegative) ++counts->neg_inf;
}

bool same_special(const double* a, const double* b, int parts, double limit, bool nan_equal) {
  for (int i = 0; i < parts; ++i) {
    const double golden = as_dtype(b[i], limit);
    if (a[i] != golden && !(nan_equal && std::isnan(a[i]) && std::isnan(golden))) return false;
  }
  return true;
}

// Counts the elements that are not finite on a side, and takes them out of the numbers.
void take_out_specials(const SumPlan& plan, int64_t first, int64_t n, Block* block, ErrorSums* sums) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const int parts = plan.is_complex ? 2 : 1;
  for (int64_t i = 0; i < n; ++i) {
    double* a = block->a + parts * i;
    double* b = block->b + parts * i;
    const Special result = special_of(a, parts, kAny);
    const Special golden = special_of(b, parts, plan.limit);
    if (result == Special::kNone && golden == Special::kNone) continue;
    count(result, &sums->result);
    count(golden, &sums->golden);
    if (!same_special(a, b, parts, plan.limit, plan.options->nan_equal)) {
      ++sums->mismatches;
      ++sums->outside;
      if (sums->mismatch_at < 0) sums->mismatch_at = first + i;
    }
    std::fill_n(a, parts, 0.0);
    std::fill_n(b, parts, 0.0);
    block->d[i] = block->m[i] = 0;
  }
}

void complex_distances(int64_t n, Block* block) {
  for (int64_t i = 0; i < n; ++i) {
    const double* a = block->a + 2 * i;
    const double* b = block->b + 2 * i;
    block->d[i] = std::hypot(a[0] - b[0], a[1] - b[1]);
    block->m[i] = std::hypot(b[0], b[1]);
  }
}

void count_over(const SumPlan& plan, const Block& block, int64_t n, ErrorSums* sums) {
  const DiffOptions& options = *plan.options;
  for (size_t k = 0; k < options.relative_limits.size(); ++k) {
    const double limit = options.relative_limits[k];
    for (int64_t i = 0; i < n; ++i) sums->over_relative[k] += block.d[i] > limit * block.m[i];
  }
  for (size_t k = 0; k < options.ulp_limits.size(); ++k) {
    const double limit = options.ulp_limits[k] * plan.unit;
    for (int64_t i = 0; i < n; ++i) {
      const double size = std::max(block.m[i], plan.least);
      sums->over_ulp[k] += block.d[i] > limit * std::exp2(std::ilogb(size));
    }
  }
  if (options.small.below <= 0) return;
  for (int64_t i = 0; i < n; ++i) {
    if (block.m[i] <= options.small.below)
      sums->small_outside += block.d[i] > options.small.atol;
    else
      sums->normal_outside += block.d[i] > options.small.rtol * block.m[i];
  }
}

void fill_up(double* values, int64_t n, int64_t full) {
  std::fill(values + n, values + full, 0.0);
}

bool fits(double sum_a, double sum_b, double largest, double limit) {
  return std::isfinite(sum_a) && std::isfinite(sum_b) && largest <= limit;
}

bool counts_more(const DiffOptions& options) {
  return !options.relative_limits.empty() || !options.ulp_limits.empty() || options.small.below > 0;
}

class Summing {
 public:
  Summing(const SumPlan& plan, const void* result, const void* golden)
      : plan_(plan),
        result_(result),
        golden_(golden),
        parts_(plan.is_complex ? 2 : 1),
        item_(plan.result_dtype == plan.golden_dtype ? c10::elementSize(plan.result_dtype) : 0) {
    block_.least = plan.least;
    if (!plan.is_exact) block_.tolerance = plan.options->tolerance;
  }

  void add(int64_t first, int64_t n, ErrorSums* sums) {
    const int64_t full = (n + kMostLanes - 1) / kMostLanes * kMostLanes;
    block_.n = full;
    block_.max_rel = sums->max_rel;
    const bool same = same_bits(first, n);
    sums->bits_equal = sums->bits_equal && same;
    load(plan_.golden_dtype, golden_, first, n, full, block_.b);
    if (same && parts_ == 1 && plan_.scale == 1) {
      const Sizes sizes = sizes_of(block_);
      if (fits(sizes.sum_of_squares, sizes.sum_of_squares, sizes.largest, plan_.limit)) {
        sums->max_m = std::max(sums->max_m, sizes.largest);
        for (double* sum : {&sums->ab, &sums->aa, &sums->bb}) *sum += sizes.sum_of_squares;
        return;
      }
    }
    load(plan_.result_dtype, result_, first, n, full, block_.a);
    Found found;
    const bool simple = !plan_.is_exact && parts_ == 1 && plan_.scale == 1;
    if (simple) found = look_at_real(block_);
    // A sum of squares is finite when all numbers are (and none is huge, which costs time only).
    const bool done = simple && fits(found.aa, found.bb, found.max_m, plan_.limit);
    if (!done) found = look_closely(first, n, full, sums);
    const bool farther = found.max_d > sums->max_d, more = counts_more(*plan_.options);
    if (done && (farther || more || found.quotient)) distances(block_);
    if (found.quotient) sums->max_rel = max_quotient(block_);
    if (farther) sums->worst_at = first + (std::find(block_.d, block_.d + n, found.max_d) - block_.d);
    if (more) count_over(plan_, block_, n, sums);
    add_found(found, sums);
  }

 private:
  bool same_bits(int64_t first, int64_t n) const {
    const size_t begin = static_cast<size_t>(first) * item_;
    return item_ > 0 && std::memcmp(static_cast<const char*>(result_) + begin,
                                    static_cast<const char*>(golden_) + begin, static_cast<size_t>(n) * item_) == 0;
  }

  void load(c10::ScalarType dtype, const void* from, int64_t first, int64_t n, int64_t full, double* to) const {
    load_doubles(dtype, from, first, n, to);
    fill_up(to, parts_ * n, parts_ * full);
  }

  // Whole numbers, complex ones, numbers that are not finite.
  Found look_closely(int64_t first, int64_t n, int64_t full, ErrorSums* sums) {
    if (plan_.is_exact) {
      subtract_exactly(plan_.result_dtype, result_, golden_, first, n, block_.d);
      for (int64_t i = 0; i < full; ++i) block_.m[i] = std::fabs(block_.b[i]);
      fill_up(block_.d, n, full);
    } else {
      parts_ == 2 ? complex_distances(full, &block_) : distances(block_);
      take_out_specials(plan_, first, n, &block_, sums);
    }
    if (plan_.scale != 1) {
      for (int64_t i = 0; i < parts_ * full; ++i) {
        block_.a[i] *= plan_.scale;
        block_.b[i] *= plan_.scale;
      }
      for (int64_t i = 0; i < full; ++i) block_.d[i] *= plan_.scale;
    }
    Found found = look_at_distances(block_);
    block_.n = parts_ * full;
    const Found products = look_at_real(block_);
    block_.n = full;
    found.ab = products.ab;
    found.aa = products.aa;
    found.bb = products.bb;
    return found;
  }

  static void add_found(const Found& found, ErrorSums* sums) {
    sums->max_d = std::max(sums->max_d, found.max_d);
    sums->max_m = std::max(sums->max_m, found.max_m);
    sums->max_ulp = std::max(sums->max_ulp, found.max_ulp);
    sums->sum_d += found.sum_d;
    sums->sum_d2 += found.sum_d2;
    sums->sum_ulp += found.sum_ulp;
    sums->ab += found.ab;
    sums->aa += found.aa;
    sums->bb += found.bb;
    sums->outside += found.outside;
  }

  const SumPlan& plan_;
  const void* const result_;
  const void* const golden_;
  const int64_t parts_;
  const size_t item_;  // 0: the dtypes differ
  Block block_;
};

void merge(const ErrorSums& from, ErrorSums* to) {
  if (from.max_d > to->max_d) to->worst_at = from.worst_at;
  if (to->mismatch_at < 0) to->mismatch_at = from.mismatch_at;
  for (const auto member : {&ErrorSums::max_d, &ErrorSums::max_rel, &ErrorSums::max_ulp, &ErrorSums::max_m}) {
    to->*member = std::max(to->*member, from.*member);
  }
  for (const auto member :
       {&ErrorSums::sum_d, &ErrorSums::sum_d2, &ErrorSums::sum_ulp, &ErrorSums::ab, &ErrorSums::aa, &ErrorSums::bb}) {
    to->*member += from.*member;
  }
  for (const auto member :
       {&ErrorSums::outside, &ErrorSums::mismatches, &ErrorSums::small_outside, &ErrorSums::normal_outside}) {
    to->*member += from.*member;
  }
  for (const auto member : {&NonFinite::nan, &NonFinite::pos_inf, &NonFinite::neg_inf}) {
    to->result.*member += from.result.*member;
    to->golden.*member += from.golden.*member;
  }
  to->bits_equal = to->bits_equal && from.bits_equal;
  for (size_t i = 0; i < to->over_relative.size(); ++i) to->over_relative[i] += from.over_relative[i];
  for (size_t i = 0; i < to->over_ulp.size(); ++i) to->over_ulp[i] += from.over_ulp[i];
}

}  // namespace

ErrorSums sum_errors(const SumPlan& plan, const void* result, const void* golden, int64_t numel) {
  const int64_t per_task = kBlock * kBlocksPerTask;
  const int64_t tasks = (numel + per_task - 1) / per_task;
  std::vector<ErrorSums> found(static_cast<size_t>(tasks));
  on_all_cores(tasks, per_task, [&](int64_t begin, int64_t end) {
    Summing summing(plan, result, golden);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t last = std::min(numel, (task + 1) * per_task);
      for (int64_t first = task * per_task; first < last; first += kBlock) {
        summing.add(first, std::min(kBlock, last - first), &found[static_cast<size_t>(task)]);
      }
    }
  });
  ErrorSums sums;
  sums.bits_equal = plan.result_dtype == plan.golden_dtype;
  for (const ErrorSums& one : found) merge(one, &sums);  // in order: the sums do not depend on the threads
  return sums;
}

int64_t count_strangers(const SumPlan& plan, const void* result, const void* golden, const void* reference,
                        int64_t numel) {
  const int parts = plan.is_complex ? 2 : 1;
  double left[2 * kBlock], middle[2 * kBlock], right[2 * kBlock];
  constexpr double kAny = std::numeric_limits<double>::infinity();
  int64_t strangers = 0;
  for (int64_t first = 0; first < numel; first += kBlock) {
    const int64_t n = std::min(kBlock, numel - first);
    load_doubles(plan.result_dtype, result, first, n, left);
    load_doubles(plan.golden_dtype, golden, first, n, middle);
    load_doubles(plan.result_dtype, reference, first, n, right);
    for (int64_t i = 0; i < parts * n; i += parts) {
      const bool special = special_of(left + i, parts, kAny) != Special::kNone ||
                           special_of(middle + i, parts, plan.limit) != Special::kNone;
      if (!special || same_special(left + i, middle + i, parts, plan.limit, true)) continue;
      // The CPU in the same dtype has it so, too; or has the other's infinity, where this one has a number.
      if (same_special(left + i, right + i, parts, kAny, true)) continue;
      const bool both_finite =
          special_of(left + i, parts, kAny) == Special::kNone && special_of(right + i, parts, kAny) == Special::kNone;
      if (!both_finite) ++strangers;
    }
  }
  return strangers;
}

}  // namespace op_tools
