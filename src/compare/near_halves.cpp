#include "compare/near_halves.h"

#include "compare/folding.h"
#include "hooks/doubles.h"

#ifdef OP_TOOLS_HAS_WIDE
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 says it of its own intrinsics
#endif

namespace op_tools {
namespace {

#ifdef OP_TOOLS_HAS_WIDE

#define OP_TOOLS_V4 __attribute__((target("arch=x86-64-v4")))
#define OP_TOOLS_V4_INLINE __attribute__((target("arch=x86-64-v4"), always_inline)) inline

// 32 of them as singles, in some order that is the same for all.
template <bool kBrain>
OP_TOOLS_V4_INLINE void widen(const uint16_t* from, __m512* even, __m512* odd) {
  if constexpr (kBrain) {
    const __m512i both = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  } else {
    *even = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    *odd = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16)));
  }
}

// The loop is bound by how many vectors the processor works on at once, so each operation counts. Sums are doubles.
// float16 as singles is normal where it is not 0. What is below `least` in bfloat16 is not: that is left to others.
template <bool kBrain>
struct Sums {
  __m512 known, zero, max_d, max_m, max_ulp, sum_ulp, excess, least;
  __m512i sign, exponent;
  __m512d sum_d, sum_d2, be, bb;
  int64_t different;

  OP_TOOLS_V4_INLINE void begin(const LoopJob& job) {
    known = _mm512_set1_ps(known_quotient(job));
    zero = max_d = max_m = max_ulp = sum_ulp = excess = _mm512_setzero_ps();
    least = _mm512_set1_ps(kBrain ? __builtin_inff() : static_cast<float>(job.least));
    sign = _mm512_set1_epi32(static_cast<int>(0x80000000));
    exponent = _mm512_set1_epi32(0x7F800000);
    different = 0;
    sum_d = sum_d2 = be = bb = _mm512_setzero_pd();
  }

  OP_TOOLS_V4_INLINE void add(__m512 result, __m512 golden) {
    const __m512i e = _mm512_castps_si512(_mm512_sub_ps(result, golden));
    const __m512i b = _mm512_castps_si512(golden);
    const __m512 d = _mm512_castsi512_ps(_mm512_andnot_si512(sign, e));
    const __m512 m = _mm512_castsi512_ps(_mm512_andnot_si512(sign, b));
    max_d = _mm512_max_ps(d, max_d);
    max_m = _mm512_max_ps(m, max_m);
    excess = _mm512_max_ps(_mm512_fnmadd_ps(known, m, d), excess);
    const __mmask16 differs = _mm512_cmp_ps_mask(d, zero, _CMP_GT_OQ);
    different += __builtin_popcount(_cvtmask16_u32(differs));
    // The exponent's bits turned over are those of twice the inverse of the power of two; infinity for 0.
    __m512 ulp;
    if constexpr (kBrain) {
      least = _mm512_mask_min_ps(least, differs, m, least);
      ulp = _mm512_maskz_mul_ps(differs, d, _mm512_castsi512_ps(_mm512_andnot_si512(b, exponent)));
    } else {
      const __m512i scale = _mm512_castps_si512(_mm512_max_ps(m, least));
      ulp = _mm512_mul_ps(d, _mm512_castsi512_ps(_mm512_andnot_si512(scale, exponent)));
    }
    max_ulp = _mm512_max_ps(ulp, max_ulp);
    sum_ulp = _mm512_add_ps(sum_ulp, ulp);
    // e * b and e * e by |e|, and b with the sign of e: no sign has to be taken from doubles. Through memory, from
    // where they are widened in one operation.
    alignas(64) float sizes[16], signed_sizes[16];
    _mm512_store_ps(sizes, d);
    _mm512_store_si512(signed_sizes, _mm512_ternarylogic_epi32(b, e, sign, 0x78));  // b ^ (e & sign)
    add_up(sizes, signed_sizes);
    add_up(sizes + 8, signed_sizes + 8);
  }

  OP_TOOLS_V4_INLINE void add_up(const float* sizes, const float* signed_sizes) {
    __m512d d, b;
    asm("vcvtps2pd %1, %0" : "=v"(d) : "m"(*reinterpret_cast<const __m256*>(sizes)));
    asm("vcvtps2pd %1, %0" : "=v"(b) : "m"(*reinterpret_cast<const __m256*>(signed_sizes)));
    sum_d = _mm512_add_pd(sum_d, d);
    sum_d2 = _mm512_fmadd_pd(d, d, sum_d2);
    be = _mm512_fmadd_pd(b, d, be);
    bb = _mm512_fmadd_pd(b, b, bb);
  }

  OP_TOOLS_V4_INLINE Near end(const LoopJob& job) const {
    Near near{};
    Found& found = near.found;
    found.max_d = Folding<float, 16>::max(max_d);
    found.max_m = Folding<float, 16>::max(max_m);
    found.max_ulp = Folding<float, 16>::max(max_ulp) / 2;
    found.sum_ulp = Folding<float, 16>::sum(sum_ulp) / 2;
    found.sum_d = Folding<double, 8>::sum(sum_d);
    found.sum_d2 = Folding<double, 8>::sum(sum_d2);
    found.bb = Folding<double, 8>::sum(bb);
    const double products = Folding<double, 8>::sum(be);
    found.ab = found.bb + products;
    found.aa = found.ab + products + found.sum_d2;
    found.outside = different;
    found.quotient = Folding<float, 16>::max(excess) > 0;
    near.below = kBrain && static_cast<double>(Folding<float, 16>::min(least)) < job.least;
    return near;
  }
};

template <bool kBrain>
OP_TOOLS_V4_INLINE bool look(const uint16_t* a, const uint16_t* b, const LoopJob& job, Found* found) {
  Sums<kBrain> sums;
  sums.begin(job);
  for (int64_t i = 0; i < kBlock; i += 32) {
    __m512 result[2], golden[2];
    widen<kBrain>(a + i, &result[0], &result[1]);
    widen<kBrain>(b + i, &golden[0], &golden[1]);
    sums.add(result[0], golden[0]);
    sums.add(result[1], golden[1]);
  }
  const Near near = sums.end(job);
  *found = near.found;
  return is_near(job, near);
}

OP_TOOLS_V4 bool is_for_this_processor() {
  return true;
}
__attribute__((target("default"))) bool is_for_this_processor() {
  return false;
}

OP_TOOLS_V4 bool near_halves(bool brain, const uint16_t* a, const uint16_t* b, const LoopJob& job, Found* found) {
  return brain ? look<true>(a, b, job, found) : look<false>(a, b, job, found);
}
__attribute__((target("default"))) bool near_halves(bool, const uint16_t*, const uint16_t*, const LoopJob&, Found*) {
  return false;
}

#else

bool is_for_this_processor() {
  return false;
}
bool near_halves(bool, const uint16_t*, const uint16_t*, const LoopJob&, Found*) {
  return false;
}

#endif

}  // namespace

bool has_near_halves() {
  static const bool has = is_for_this_processor();
  return has;
}

bool look_at_near_halves(c10::ScalarType dtype, const uint16_t* a, const uint16_t* b, const LoopJob& job,
                         Found* found) {
  return near_halves(dtype == c10::ScalarType::BFloat16, a, b, job, found);
}

}  // namespace op_tools
