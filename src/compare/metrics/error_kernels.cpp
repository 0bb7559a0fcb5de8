#include "compare/metrics/error_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compare/metrics/simd_reduce.h"
#include "tensor/float_conversion.h"

namespace op_tools {
namespace {

// So many doubles at once. Eight need AVX-512: GCC 12 takes seven times as long where it has to make them of AVX2.
// kWidens: the processor has an instruction that widens so many singles.
template <int kWidth, bool kWidens>
struct Vector {
  static constexpr int64_t kLanes = kWidth;
  static constexpr bool kHasWidening = kWidens;
  typedef double Doubles __attribute__((vector_size(8 * kWidth)));
  typedef int64_t Bits __attribute__((vector_size(8 * kWidth)));
  typedef float Singles __attribute__((vector_size(8 * kWidth)));  // twice as many
  typedef int32_t SingleBits __attribute__((vector_size(8 * kWidth)));
  // In memory, anywhere.
  typedef double DoublesThere __attribute__((vector_size(8 * kWidth), aligned(8), may_alias));
  typedef float SinglesThere __attribute__((vector_size(8 * kWidth), aligned(4), may_alias));
  typedef float FewSinglesThere __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
  typedef float FewSingles __attribute__((vector_size(4 * kWidth)));
};

// A function for each kind of processor; the one that fits is chosen when the library is loaded.
#ifdef OP_TOOLS_HAS_WIDE
#define OP_TOOLS_BY_WIDTH(result, name, loop)                                      \
  __attribute__((target("arch=x86-64-v4"))) result name##_by(const LoopJob& job) { \
    return loop<Vector<8, true>>(job);                                             \
  }                                                                                \
  __attribute__((target("arch=x86-64-v3"))) result name##_by(const LoopJob& job) { \
    return loop<Vector<4, true>>(job);                                             \
  }                                                                                \
  __attribute__((target("default"))) result name##_by(const LoopJob& job) {        \
    return loop<Vector<4, false>>(job);                                            \
  }
#else
#define OP_TOOLS_BY_WIDTH(result, name, loop) \
  result name##_by(const LoopJob& job) {      \
    return loop<Vector<4, false>>(job);       \
  }
#endif

constexpr int64_t kExponent = int64_t{0x7FF} << 52;
constexpr int64_t kSign = std::numeric_limits<int64_t>::min();
constexpr int64_t kInverse = int64_t{2046} << 52;  // minus the bits of a power of two: the bits of its inverse
constexpr int32_t kSingleExponent = 0xFF << 23;
constexpr int32_t kSingleSign = std::numeric_limits<int32_t>::min();
constexpr int32_t kSingleInverse = 254 << 23;

template <class V>
[[gnu::always_inline]] inline double sum_of(const typename V::Doubles& value) {
  return Folding<double, V::kLanes>::sum(value);
}
template <class V>
[[gnu::always_inline]] inline double max_of(const typename V::Doubles& value) {
  return Folding<double, V::kLanes>::max(value);
}
template <class V>
[[gnu::always_inline]] inline double sum_of_singles(const typename V::Singles& value) {
  return Folding<float, 2 * V::kLanes>::sum(value);
}
template <class V>
[[gnu::always_inline]] inline double max_of_singles(const typename V::Singles& value) {
  return Folding<float, 2 * V::kLanes>::max(value);
}

// By reference: how wide vectors are handed over depends on the processor.
template <class V>
[[gnu::always_inline]] inline void drop_sign(typename V::Doubles& value) {
  value = reinterpret_cast<typename V::Doubles>(reinterpret_cast<typename V::Bits>(value) & ~kSign);
}
template <class V>
[[gnu::always_inline]] inline void drop_single_sign(typename V::Singles& value) {
  value = reinterpret_cast<typename V::Singles>(reinterpret_cast<typename V::SingleBits>(value) & ~kSingleSign);
}

template <class V>
[[gnu::always_inline]] inline void load(const double* from, typename V::Doubles& to) {
  to = *reinterpret_cast<const typename V::DoublesThere*>(from);
}
template <class V>
[[gnu::always_inline]] inline void load(const float* from, typename V::Doubles& to) {
  if constexpr (V::kHasWidening) {  // GCC 12 makes several instructions of the one that there is
    asm("vcvtps2pd %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const typename V::FewSinglesThere*>(from)));
  } else {
    typename V::FewSingles few;  // GCC 12 forgets, of a vector that it converts, that it is aligned to nothing
    std::memcpy(&few, from, sizeof(few));
    to = __builtin_convertvector(few, typename V::Doubles);
  }
}

// d and m of doubles; the others have no use for their own.
enum class From { kPairs, kDistances };

template <From kFrom, class A, class B, class V>
[[gnu::always_inline]] inline Found look(const LoopJob& job, const A* a, const B* b) {
  using Doubles = typename V::Doubles;
  using Bits = typename V::Bits;
  const Bits exponent = Bits{} + kExponent, inverse = Bits{} + kInverse;
  const Doubles least = Doubles{} + job.least, max_rel = Doubles{} + job.max_rel;
  const Doubles zero{}, one = Doubles{} + 1.0;
  const Doubles atol = Doubles{} + job.tolerance.atol, rtol = Doubles{} + job.tolerance.rtol;
  Doubles max_d{}, sum_d{}, sum_d2{}, max_ulp{}, sum_ulp{}, max_m{}, ab{}, aa{}, bb{}, outside{}, excess{};
  for (int64_t i = 0; i < job.n; i += V::kLanes) {
    Doubles difference, size;
    if constexpr (kFrom == From::kPairs) {
      Doubles result, golden;
      load<V>(a + i, result);
      load<V>(b + i, golden);
      difference = result - golden;
      size = golden;
      drop_sign<V>(difference);
      drop_sign<V>(size);
      ab += result * golden;
      aa += result * result;
      bb += golden * golden;
    } else {
      load<V>(job.d + i, difference);
      load<V>(job.m + i, size);
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
[[gnu::always_inline]] inline Found look_at_doubles(const LoopJob& job) {
  return look<From::kPairs, double, double, V>(job, job.a.doubles, job.b.doubles);
}
template <class V>
[[gnu::always_inline]] inline Found look_at_mixed(const LoopJob& job) {
  return look<From::kPairs, float, double, V>(job, job.a.singles, job.b.doubles);
}
template <class V>
[[gnu::always_inline]] inline Found look_at_singles(const LoopJob& job) {
  return look<From::kPairs, float, float, V>(job, job.a.singles, job.b.singles);
}
template <class V>
[[gnu::always_inline]] inline Found look_at_sizes(const LoopJob& job) {
  return look<From::kDistances, double, double, V>(job, nullptr, nullptr);
}

// Differences, ULPs and what is largest as singles; sums as doubles. Each product with `a` is made of those with the
// difference, which loses nothing where a is not much smaller than b.
template <bool kTolerates, class V>
[[gnu::always_inline]] inline Near look_near(const LoopJob& job) {
  using Doubles = typename V::Doubles;
  using Singles = typename V::Singles;
  using Bits = typename V::SingleBits;
  const float known = known_quotient(job);
  const Bits exponent = Bits{} + kSingleExponent, inverse = Bits{} + kSingleInverse;
  const Singles least = Singles{} + static_cast<float>(job.least), max_rel = Singles{} + known;
  const Singles no{}, yes = Singles{} + 1.0F;
  const Doubles zero{}, one = Doubles{} + 1.0;
  const Doubles atol = Doubles{} + job.tolerance.atol, rtol = Doubles{} + job.tolerance.rtol;
  Singles max_d{}, max_m{}, max_ulp{}, sum_ulp{}, excess{}, different{}, max_below{};
  Doubles sum_d{}, sum_d2{}, be{}, bb{}, outside{};
  alignas(64) float e_singles[2 * V::kLanes];
  for (int64_t i = 0; i < job.n; i += 2 * V::kLanes) {
    const Singles golden = *reinterpret_cast<const typename V::SinglesThere*>(job.b.singles + i);
    Singles difference = *reinterpret_cast<const typename V::SinglesThere*>(job.a.singles + i) - golden;
    Singles size = golden;
    *reinterpret_cast<Singles*>(e_singles) = difference;
    drop_single_sign<V>(difference);
    drop_single_sign<V>(size);
    max_d = difference > max_d ? difference : max_d;
    max_m = size > max_m ? size : max_m;
    const Singles over = difference - max_rel * size;
    excess = over > excess ? over : excess;
    const Singles scale = size > least ? size : least;
    const Singles ulp = difference * reinterpret_cast<Singles>(inverse - (reinterpret_cast<Bits>(scale) & exponent));
    max_ulp = ulp > max_ulp ? ulp : max_ulp;
    sum_ulp += ulp;
    different = difference > no ? different + yes : different;
    const Singles below = size < least ? difference : no;
    max_below = below > max_below ? below : max_below;
    for (int64_t part = 0; part < 2; ++part) {
      Doubles b, e;
      load<V>(job.b.singles + i + part * V::kLanes, b);
      load<V>(e_singles + part * V::kLanes, e);
      Doubles d = e;
      drop_sign<V>(d);
      sum_d += d;
      sum_d2 += e * e;
      be += b * e;
      bb += b * b;
      if constexpr (kTolerates) {
        drop_sign<V>(b);
        outside += d > atol + rtol * b ? one : zero;
      }
    }
  }
  Found found{};
  found.max_d = max_of_singles<V>(max_d);
  found.max_m = max_of_singles<V>(max_m);
  found.max_ulp = max_of_singles<V>(max_ulp);
  found.sum_ulp = sum_of_singles<V>(sum_ulp);
  found.sum_d = sum_of<V>(sum_d);
  found.sum_d2 = sum_of<V>(sum_d2);
  found.bb = sum_of<V>(bb);
  found.ab = found.bb + sum_of<V>(be);
  found.aa = found.ab + sum_of<V>(be) + found.sum_d2;
  found.outside = static_cast<int64_t>(kTolerates ? sum_of<V>(outside) : sum_of_singles<V>(different));
  found.quotient = max_of_singles<V>(excess) > 0;
  return {found, max_of_singles<V>(max_below) > 0};
}

template <class V>
[[gnu::always_inline]] inline Near look_strictly(const LoopJob& job) {
  return look_near<false, V>(job);
}
template <class V>
[[gnu::always_inline]] inline Near look_within(const LoopJob& job) {
  return look_near<true, V>(job);
}

template <class B, class V>
[[gnu::always_inline]] inline Sizes add_sizes(const LoopJob& job, const B* b) {
  typename V::Doubles squares{}, largest{};
  for (int64_t i = 0; i < job.n; i += V::kLanes) {
    typename V::Doubles size;
    load<V>(b + i, size);
    drop_sign<V>(size);
    largest = size > largest ? size : largest;
    squares += size * size;
  }
  return {sum_of<V>(squares), max_of<V>(largest)};
}
template <class V>
[[gnu::always_inline]] inline Sizes add_sizes_of_doubles(const LoopJob& job) {
  return add_sizes<double, V>(job, job.b.doubles);
}
template <class V>
[[gnu::always_inline]] inline Sizes add_sizes_of_singles(const LoopJob& job) {
  return add_sizes<float, V>(job, job.b.singles);
}

template <class V>
[[gnu::always_inline]] inline double raise_quotient(const LoopJob& job) {
  typename V::Doubles largest = typename V::Doubles{} + job.max_rel;
  for (int64_t i = 0; i < job.n; i += V::kLanes) {
    typename V::Doubles difference, size;
    load<V>(job.d + i, difference);
    load<V>(job.m + i, size);
    const typename V::Doubles relative = difference / size;  // 0 / 0 is no number and greater than none
    largest = relative > largest ? relative : largest;
  }
  return max_of<V>(largest);
}

OP_TOOLS_WIDE void subtract(const double* a, const double* b, int64_t n, double* d, double* m) {
  for (int64_t i = 0; i < n; ++i) {
    d[i] = std::fabs(a[i] - b[i]);
    m[i] = std::fabs(b[i]);
  }
}

OP_TOOLS_BY_WIDTH(Found, doubles, look_at_doubles)
OP_TOOLS_BY_WIDTH(Found, mixed, look_at_mixed)
OP_TOOLS_BY_WIDTH(Found, singles, look_at_singles)
OP_TOOLS_BY_WIDTH(Near, near, look_strictly)
OP_TOOLS_BY_WIDTH(Near, near_within, look_within)
OP_TOOLS_BY_WIDTH(Found, distances, look_at_sizes)
OP_TOOLS_BY_WIDTH(Sizes, sizes_of_doubles, add_sizes_of_doubles)
OP_TOOLS_BY_WIDTH(Sizes, sizes_of_singles, add_sizes_of_singles)
OP_TOOLS_BY_WIDTH(double, quotient, raise_quotient)

}  // namespace

Found look_at_real(const LoopJob& job) {
  if (!job.a.singles) return doubles_by(job);
  return job.b.singles ? singles_by(job) : mixed_by(job);
}

bool tolerates(const Tolerance& tolerance) {
  return tolerance.atol > 0 || tolerance.rtol > 0;
}

float known_quotient(const LoopJob& job) {
  const float known = static_cast<float>(job.max_rel);
  if (static_cast<double>(known) > job.max_rel && !job.coarse) return std::nextafterf(known, 0);
  if (static_cast<double>(known) < job.max_rel && job.coarse) return std::nextafterf(known, HUGE_VALF);
  return known;
}

bool is_near(const LoopJob& job, const Near& near) {
  constexpr double kExactDifference = 0.5, kExactSum = 0x1p12, kInvertible = 0x1p126;
  const Found& found = near.found;
  return found.max_ulp <= std::min(kExactDifference, kExactSum * job.unit) && !near.below &&
         found.max_m < kInvertible && std::isfinite(found.bb) && std::isfinite(found.sum_d2);
}

bool look_at_near(const LoopJob& job, Found* found) {
  const Near near = tolerates(job.tolerance) ? near_within_by(job) : near_by(job);
  *found = near.found;
  return is_near(job, near);
}

Found look_at_distances(const LoopJob& job) {
  return distances_by(job);
}

Sizes sizes_of(const LoopJob& job) {
  return job.b.singles ? sizes_of_singles_by(job) : sizes_of_doubles_by(job);
}

void make_distances(int64_t n, Block* block) {
  subtract(block->a, block->b, n, block->d, block->m);
}

double largest_quotient(const LoopJob& job) {
  return quotient_by(job);
}

}  // namespace op_tools
