#include "compare/metrics/error_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compare/metrics/simd_reduce.h"
#include "tensor/float_conversion.h"

namespace op_tools {
namespace {

// SIMD vectors of kWidth doubles. Eight need AVX-512: with AVX2, code that GCC 12 makes for eight is seven times
// slower. kWidens: the processor converts kWidth floats to doubles in a single instruction.
template <int kWidth, bool kWidens>
struct Vector {
  static constexpr int64_t kLanes = kWidth;
  static constexpr bool kHasWidening = kWidens;
  typedef double Doubles __attribute__((vector_size(8 * kWidth)));
  typedef int64_t Bits __attribute__((vector_size(8 * kWidth)));
  typedef float Floats __attribute__((vector_size(8 * kWidth)));  // 2 * kWidth
  typedef int32_t FloatBits __attribute__((vector_size(8 * kWidth)));
  // In memory, at any address.
  typedef double UnalignedDoubles __attribute__((vector_size(8 * kWidth), aligned(8), may_alias));
  typedef float UnalignedFloats __attribute__((vector_size(8 * kWidth), aligned(4), may_alias));
  typedef float UnalignedFloatsToWiden __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
  typedef float FloatsToWiden __attribute__((vector_size(4 * kWidth)));
};

// A function per instruction set; the dynamic linker chooses when the library is loaded.
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
constexpr int64_t kInverse = int64_t{2046}
                             << 52;  // this minus the bits of a power of two gives the bits of its inverse
constexpr int32_t kFloatExponent = 0xFF << 23;
constexpr int32_t kFloatSign = std::numeric_limits<int32_t>::min();
constexpr int32_t kFloatInverse = 254 << 23;

template <class V>
[[gnu::always_inline]] inline double sum_of(const typename V::Doubles& value) {
  return LaneReduction<double, V::kLanes>::sum(value);
}
template <class V>
[[gnu::always_inline]] inline double max_of(const typename V::Doubles& value) {
  return LaneReduction<double, V::kLanes>::max(value);
}
template <class V>
[[gnu::always_inline]] inline double sum_of_floats(const typename V::Floats& value) {
  return LaneReduction<float, 2 * V::kLanes>::sum(value);
}
template <class V>
[[gnu::always_inline]] inline double max_of_floats(const typename V::Floats& value) {
  return LaneReduction<float, 2 * V::kLanes>::max(value);
}

// By reference: the calling convention of vectors depends on the instruction set.
template <class V>
[[gnu::always_inline]] inline void drop_sign(typename V::Doubles& value) {
  value = reinterpret_cast<typename V::Doubles>(reinterpret_cast<typename V::Bits>(value) & ~kSign);
}
template <class V>
[[gnu::always_inline]] inline void drop_float_sign(typename V::Floats& value) {
  value = reinterpret_cast<typename V::Floats>(reinterpret_cast<typename V::FloatBits>(value) & ~kFloatSign);
}

template <class V>
[[gnu::always_inline]] inline void load(const double* from, typename V::Doubles& to) {
  to = *reinterpret_cast<const typename V::UnalignedDoubles*>(from);
}
template <class V>
[[gnu::always_inline]] inline void load(const float* from, typename V::Doubles& to) {
  if constexpr (V::kHasWidening) {  // GCC 12 would emit several instructions
    asm("vcvtps2pd %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const typename V::UnalignedFloatsToWiden*>(from)));
  } else {
    typename V::FloatsToWiden few;  // GCC 12 drops the alignment of a vector that it converts
    std::memcpy(&few, from, sizeof(few));
    to = __builtin_convertvector(few, typename V::Doubles);
  }
}

// Where the differences d and the sizes m come from: computed from pairs of elements, or read from the block.
enum class From { kPairs, kDistances };

template <From kFrom, class A, class B, class V>
[[gnu::always_inline]] inline Found look(const LoopJob& job, const A* a, const B* b) {
  using Doubles = typename V::Doubles;
  using Bits = typename V::Bits;
  const Bits exponent = Bits{} + kExponent, inverse = Bits{} + kInverse;
  const Doubles least = Doubles{} + job.least, max_rel = Doubles{} + job.max_rel;
  const Doubles zero{}, unit = Doubles{} + 1.0;
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
    const Doubles over = difference - max_rel * size;  // infinity * 0 is NaN, which is greater than nothing
    excess = over > excess ? over : excess;
    const Doubles scale = size > least ? size : least;
    const Doubles ulp = difference * reinterpret_cast<Doubles>(inverse - (reinterpret_cast<Bits>(scale) & exponent));
    max_ulp = ulp > max_ulp ? ulp : max_ulp;
    sum_ulp += ulp;
    outside += difference > atol + rtol * size ? unit : zero;
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
  return look<From::kPairs, float, double, V>(job, job.a.floats, job.b.doubles);
}
template <class V>
[[gnu::always_inline]] inline Found look_at_floats(const LoopJob& job) {
  return look<From::kPairs, float, float, V>(job, job.a.floats, job.b.floats);
}
template <class V>
[[gnu::always_inline]] inline Found look_at_sizes(const LoopJob& job) {
  return look<From::kDistances, double, double, V>(job, nullptr, nullptr);
}

// Products with a = b + e, from those of b and of the difference e.
[[gnu::always_inline]] inline void add_products(double ee, double be, double bb, Found* findings) {
  findings->sum_d2 = ee;
  findings->bb = bb;
  findings->ab = bb + be;
  findings->aa = findings->ab + be + ee;
}

// Differences, ULPs and maxima in float32; sums in float64. Products with `a` are derived from those with the
// difference, which is exact where a is not much smaller than b.
template <bool kTolerates, class V>
[[gnu::always_inline]] inline Near look_near(const LoopJob& job) {
  using Doubles = typename V::Doubles;
  using Floats = typename V::Floats;
  using Bits = typename V::FloatBits;
  const float known = known_quotient(job);
  const Bits exponent = Bits{} + kFloatExponent, inverse = Bits{} + kFloatInverse;
  const Floats least = Floats{} + static_cast<float>(job.least), max_rel = Floats{} + known;
  const Floats no{}, yes = Floats{} + 1.0F;
  const Doubles zero{}, unit = Doubles{} + 1.0;
  const Doubles atol = Doubles{} + job.tolerance.atol, rtol = Doubles{} + job.tolerance.rtol;
  Floats max_d{}, max_m{}, max_ulp{}, sum_ulp{}, excess{}, different{}, max_below{};
  Doubles sum_d{}, sum_d2{}, be{}, bb{}, outside{};
  alignas(64) float e_floats[2 * V::kLanes];
  for (int64_t i = 0; i < job.n; i += 2 * V::kLanes) {
    const Floats golden = *reinterpret_cast<const typename V::UnalignedFloats*>(job.b.floats + i);
    Floats difference = *reinterpret_cast<const typename V::UnalignedFloats*>(job.a.floats + i) - golden;
    Floats size = golden;
    *reinterpret_cast<Floats*>(e_floats) = difference;
    drop_float_sign<V>(difference);
    drop_float_sign<V>(size);
    max_d = difference > max_d ? difference : max_d;
    max_m = size > max_m ? size : max_m;
    const Floats over = difference - max_rel * size;
    excess = over > excess ? over : excess;
    const Floats scale = size > least ? size : least;
    const Floats ulp = difference * reinterpret_cast<Floats>(inverse - (reinterpret_cast<Bits>(scale) & exponent));
    max_ulp = ulp > max_ulp ? ulp : max_ulp;
    sum_ulp += ulp;
    different = difference > no ? different + yes : different;
    const Floats below = size < least ? difference : no;
    max_below = below > max_below ? below : max_below;
    for (int64_t part = 0; part < 2; ++part) {
      Doubles b, e;
      load<V>(job.b.floats + i + part * V::kLanes, b);
      load<V>(e_floats + part * V::kLanes, e);
      Doubles d = e;
      drop_sign<V>(d);
      sum_d += d;
      sum_d2 += e * e;
      be += b * e;
      bb += b * b;
      if constexpr (kTolerates) {
        drop_sign<V>(b);
        outside += d > atol + rtol * b ? unit : zero;
      }
    }
  }
  Found findings{};
  findings.max_d = max_of_floats<V>(max_d);
  findings.max_m = max_of_floats<V>(max_m);
  findings.max_ulp = max_of_floats<V>(max_ulp);
  findings.sum_ulp = sum_of_floats<V>(sum_ulp);
  findings.sum_d = sum_of<V>(sum_d);
  findings.outside = static_cast<int64_t>(kTolerates ? sum_of<V>(outside) : sum_of_floats<V>(different));
  findings.quotient = max_of_floats<V>(excess) > 0;
  add_products(sum_of<V>(sum_d2), sum_of<V>(be), sum_of<V>(bb), &findings);
  return {findings, max_of_floats<V>(max_below) > 0};
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
[[gnu::always_inline]] inline Sizes add_sizes_of_floats(const LoopJob& job) {
  return add_sizes<float, V>(job, job.b.floats);
}

template <class V>
[[gnu::always_inline]] inline double raise_quotient(const LoopJob& job) {
  typename V::Doubles largest = typename V::Doubles{} + job.max_rel;
  for (int64_t i = 0; i < job.n; i += V::kLanes) {
    typename V::Doubles difference, size;
    load<V>(job.d + i, difference);
    load<V>(job.m + i, size);
    const typename V::Doubles relative = difference / size;  // 0 / 0 is NaN, which is greater than nothing
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
OP_TOOLS_BY_WIDTH(Found, floats, look_at_floats)
OP_TOOLS_BY_WIDTH(Near, near, look_strictly)
OP_TOOLS_BY_WIDTH(Near, near_within, look_within)
OP_TOOLS_BY_WIDTH(Found, distances, look_at_sizes)
OP_TOOLS_BY_WIDTH(Sizes, sizes_of_doubles, add_sizes_of_doubles)
OP_TOOLS_BY_WIDTH(Sizes, sizes_of_floats, add_sizes_of_floats)
OP_TOOLS_BY_WIDTH(double, quotient, raise_quotient)

}  // namespace

Found look_at_real(const LoopJob& job) {
  if (!job.a.floats) return doubles_by(job);
  return job.b.floats ? floats_by(job) : mixed_by(job);
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
  const Found& findings = near.findings;
  return findings.max_ulp <= std::min(kExactDifference, kExactSum * job.unit) && !near.below &&
         findings.max_m < kInvertible && std::isfinite(findings.bb) && std::isfinite(findings.sum_d2);
}

bool sum_near(const LoopJob& job, Found* findings) {
  const Near near = tolerates(job.tolerance) ? near_within_by(job) : near_by(job);
  *findings = near.findings;
  return is_near(job, near);
}

Found look_at_distances(const LoopJob& job) {
  return distances_by(job);
}

Sizes sizes_of(const LoopJob& job) {
  return job.b.floats ? sizes_of_floats_by(job) : sizes_of_doubles_by(job);
}

void make_distances(int64_t n, Block* block) {
  subtract(block->a, block->b, n, block->d, block->m);
}

double largest_quotient(const LoopJob& job) {
  return quotient_by(job);
}

}  // namespace op_tools
