#include "compare/metrics/float16_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "compare/metrics/simd_reduce.h"
#include "tensor/float_conversion.h"

#ifdef OP_TOOLS_HAS_WIDE
#include <immintrin.h>
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 says it of its own intrinsics
#endif

namespace op_tools {
namespace {

#ifdef OP_TOOLS_HAS_WIDE

#define OP_TOOLS_V4 __attribute__((target("arch=x86-64-v4")))
#define OP_TOOLS_V4_INLINE __attribute__((target("arch=x86-64-v4"), always_inline)) inline

// 32 elements as float32, in an order that is the same for both sides.
template <bool kBFloat16>
OP_TOOLS_V4_INLINE void widen(const uint16_t* from, __m512* even, __m512* odd) {
  if constexpr (kBFloat16) {
    const __m512i both = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  } else {
    *even = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    *odd = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16)));
  }
}

// This many elements are added in float32, eight per lane, before the sums are added in float64.
constexpr int64_t kRun = 128;
constexpr int64_t kAhead = 2048;  // elements: the prefetch distance

// bfloat16 has the range of float32, in which its squares overflow. A block is scaled by a power of two that puts its
// largest value at the upper end of the range that sums without overflow. At the lower end, squares of differences of
// neighbours are still normal numbers: a denormal costs the processor as much as a hundred others.
struct Measure {
  bool fits;       // all are finite, and 0 or not below the least
  double largest;  // of the block
  float factor;
};
constexpr int kBias = 127, kUpper = kBias + 60, kLower = kBias - 55;  // biased exponents

OP_TOOLS_V4_INLINE Measure measure_bfloat16(const uint16_t* golden, const LoopJob& job) {
  const __m512i size = _mm512_set1_epi16(0x7FFF), lowest = _mm512_set1_epi16(1);
  __m512i most = _mm512_setzero_si512(), least = _mm512_set1_epi16(-1);
  for (int64_t i = 0; i < kBlock; i += 32) {
    const __m512i m = _mm512_and_si512(_mm512_loadu_si512(golden + i), size);
    most = _mm512_max_epu16(m, most);
    least = _mm512_min_epu16(_mm512_sub_epi16(m, lowest), least);  // 0 wraps to the largest
  }
  using Words = LaneReduction<uint16_t, 32>;
  const int upper = Words::max(reinterpret_cast<Words::Lanes>(most)),
            lower = Words::min(reinterpret_cast<Words::Lanes>(least)) + 1;
  const int largest = upper >> 7, smallest = lower >> 7, shift = std::min(kUpper - largest, kBias);
  const int allowed = std::max(kLower - shift, kBias + std::ilogb(job.least));
  return {largest < 255 && smallest >= allowed, std::bit_cast<float>(static_cast<uint32_t>(upper) << 16),
          std::bit_cast<float>(static_cast<uint32_t>(shift + kBias) << 23)};
}

// The loop is bound by the throughput of vector instructions, so each operation counts; converting sixteen floats to
// float64 takes four. Products of two 16-bit floats, and sums of a few of them, are exact or nearly so in float32.
template <bool kBFloat16>
struct Sums {
  __m512 factor, known, zero, max_d, max_m, max_ulp, sum_ulp, excess, least;
  __m512 run_d, run_d2, run_be, run_bb;
  __m512i sign, exponent;
  __m512d sum_d, sum_d2, be, bb;
  int64_t different;

  OP_TOOLS_V4_INLINE void begin(const LoopJob& job, const Measure& measure) {
    factor = _mm512_set1_ps(measure.factor);
    known = _mm512_set1_ps(known_quotient(job));
    zero = max_d = max_m = max_ulp = sum_ulp = excess = _mm512_setzero_ps();
    least = _mm512_set1_ps(static_cast<float>(job.least));
    sign = _mm512_set1_epi32(static_cast<int>(0x80000000));
    exponent = _mm512_set1_epi32(0x7F800000);
    different = 0;
    sum_d = sum_d2 = be = bb = _mm512_setzero_pd();
    begin_run();
  }
  OP_TOOLS_V4_INLINE void begin_run() { run_d = run_d2 = run_be = run_bb = _mm512_setzero_ps(); }

  OP_TOOLS_V4_INLINE void add(__m512 result, __m512 golden) {
    if constexpr (kBFloat16) {
      result = _mm512_mul_ps(result, factor);
      golden = _mm512_mul_ps(golden, factor);
    }
    const __m512 e = _mm512_sub_ps(result, golden);
    const __m512 d = _mm512_castsi512_ps(_mm512_andnot_si512(sign, _mm512_castps_si512(e)));
    const __m512 m = _mm512_castsi512_ps(_mm512_andnot_si512(sign, _mm512_castps_si512(golden)));
    max_d = _mm512_max_ps(d, max_d);
    if constexpr (!kBFloat16) max_m = _mm512_max_ps(m, max_m);
    excess = _mm512_max_ps(_mm512_fnmadd_ps(known, m, d), excess);
    const __mmask16 differs = _mm512_cmp_ps_mask(d, zero, _CMP_GT_OQ);
    different += __builtin_popcount(_cvtmask16_u32(differs));
    // The inverted exponent bits are those of twice the inverse of the power of two; infinity for 0, to which nothing
    // is near in bfloat16.
    __m512 ulp;
    if constexpr (kBFloat16) {
      const __m512i inverse = _mm512_andnot_si512(_mm512_castps_si512(golden), exponent);
      ulp = _mm512_maskz_mul_ps(differs, d, _mm512_castsi512_ps(inverse));
    } else {
      const __m512i scale = _mm512_castps_si512(_mm512_max_ps(m, least));
      ulp = _mm512_mul_ps(d, _mm512_castsi512_ps(_mm512_andnot_si512(scale, exponent)));
    }
    max_ulp = _mm512_max_ps(ulp, max_ulp);
    sum_ulp = _mm512_add_ps(sum_ulp, ulp);
    run_d = _mm512_add_ps(run_d, d);
    run_d2 = _mm512_fmadd_ps(e, e, run_d2);
    run_be = _mm512_fmadd_ps(e, golden, run_be);
    run_bb = _mm512_fmadd_ps(golden, golden, run_bb);
  }

  // Through memory: converting from there takes fewer operations.
  static OP_TOOLS_V4_INLINE void add_run(__m512 run, __m512d* sum) {
    alignas(64) float lanes[16];
    _mm512_store_ps(lanes, run);
    __m512d low, high;
    asm("vcvtps2pd %1, %0" : "=v"(low) : "m"(*reinterpret_cast<const __m256*>(lanes)));
    asm("vcvtps2pd %1, %0" : "=v"(high) : "m"(*reinterpret_cast<const __m256*>(lanes + 8)));
    *sum = _mm512_add_pd(*sum, _mm512_add_pd(low, high));
  }
  OP_TOOLS_V4_INLINE void end_run() {
    add_run(run_d, &sum_d);
    add_run(run_d2, &sum_d2);
    add_run(run_be, &be);
    add_run(run_bb, &bb);
    begin_run();
  }

  // By more than is_near() accepts: the caller need not continue.
  OP_TOOLS_V4_INLINE bool far() const { return _mm512_cmp_ps_mask(max_ulp, _mm512_set1_ps(1), _CMP_GT_OQ) != 0; }

  OP_TOOLS_V4_INLINE Near end(const Measure& measure) const {
    const double unit = 1 / static_cast<double>(measure.factor), square = unit * unit;
    Near near{};
    Found& findings = near.findings;
    findings.max_d = LaneReduction<float, 16>::max(max_d) * unit;
    findings.max_m = kBFloat16 ? measure.largest : LaneReduction<float, 16>::max(max_m);
    findings.max_ulp = LaneReduction<float, 16>::max(max_ulp) / 2;
    findings.sum_ulp = LaneReduction<float, 16>::sum(sum_ulp) / 2;
    findings.sum_d = LaneReduction<double, 8>::sum(sum_d) * unit;
    findings.sum_d2 = LaneReduction<double, 8>::sum(sum_d2) * square;
    findings.bb = LaneReduction<double, 8>::sum(bb) * square;
    const double products = LaneReduction<double, 8>::sum(be) * square;
    findings.ab = findings.bb + products;
    findings.aa = findings.ab + products + findings.sum_d2;
    findings.outside = different;
    findings.quotient = LaneReduction<float, 16>::max(excess) > 0;
    return near;
  }
};

template <bool kBFloat16>
OP_TOOLS_V4_INLINE bool look(const uint16_t* a, const uint16_t* b, const LoopJob& job, Found* findings) {
  const Measure measure = kBFloat16 ? measure_bfloat16(b, job) : Measure{true, 0, 1};
  if (!measure.fits) return false;
  Sums<kBFloat16> sums;
  sums.begin(job, measure);
  for (int64_t first = 0; first < kBlock; first += kRun) {
#pragma GCC unroll 4
    for (int64_t i = first; i < first + kRun; i += 32) {
      _mm_prefetch(reinterpret_cast<const char*>(a + i + kAhead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + i + kAhead), _MM_HINT_T0);
      __m512 result[2], golden[2];
      widen<kBFloat16>(a + i, &result[0], &result[1]);
      widen<kBFloat16>(b + i, &golden[0], &golden[1]);
      sums.add(result[0], golden[0]);
      sums.add(result[1], golden[1]);
    }
    if (sums.far()) return false;
    sums.end_run();
  }
  const Near near = sums.end(measure);
  *findings = near.findings;
  return is_near(job, near);
}

OP_TOOLS_V4 bool is_for_this_processor() {
  return true;
}
__attribute__((target("default"))) bool is_for_this_processor() {
  return false;
}

OP_TOOLS_V4 bool near_float16(bool is_bfloat16, const uint16_t* a, const uint16_t* b, const LoopJob& job,
                              Found* findings) {
  return is_bfloat16 ? look<true>(a, b, job, findings) : look<false>(a, b, job, findings);
}
__attribute__((target("default"))) bool near_float16(bool, const uint16_t*, const uint16_t*, const LoopJob&, Found*) {
  return false;
}

#else

bool is_for_this_processor() {
  return false;
}
bool near_float16(bool, const uint16_t*, const uint16_t*, const LoopJob&, Found*) {
  return false;
}

#endif

}  // namespace

bool has_near_float16() {
  static const bool has = is_for_this_processor();
  return has;
}

bool compare_near_float16(c10::ScalarType dtype, const uint16_t* a, const uint16_t* b, const LoopJob& job,
                          Found* findings) {
  return near_float16(dtype == c10::ScalarType::BFloat16, a, b, job, findings);
}

}  // namespace op_tools
