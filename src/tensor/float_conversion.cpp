#include "tensor/float_conversion.h"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Float8_e8m0fnu.h>

#include <cstring>
#include <type_traits>

#ifdef OP_TOOLS_HAS_WIDE
#include <immintrin.h>
#endif

// Real dtypes of eight bits, and integers of which float32 has all.
#define OP_TOOLS_FLOAT8_TYPES(_)           \
  _(c10::Float8_e5m2, Float8_e5m2)         \
  _(c10::Float8_e4m3fn, Float8_e4m3fn)     \
  _(c10::Float8_e5m2fnuz, Float8_e5m2fnuz) \
  _(c10::Float8_e4m3fnuz, Float8_e4m3fnuz) \
  _(c10::Float8_e8m0fnu, Float8_e8m0fnu)
#define OP_TOOLS_SMALL_INTEGER_TYPES(_) \
  _(uint8_t, Byte)                      \
  _(int8_t, Char)                       \
  _(int16_t, Short)                     \
  _(bool, Bool)                         \
  _(uint16_t, UInt16)

namespace op_tools {
namespace {

template <class T, class To>
void widen(const T* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_arithmetic_v<T>)
      to[i] = static_cast<To>(from[i]);
    else
      to[i] = static_cast<To>(static_cast<float>(from[i]));
  }
}

OP_TOOLS_WIDE void widen_float32(const float* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(from[i]);
}
template <class To>
[[gnu::always_inline]] inline void widen_bfloat16s(const uint16_t* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    to[i] = static_cast<To>(value);
  }
}
OP_TOOLS_WIDE void widen_bfloat16(const uint16_t* from, int64_t n, double* to) {
  widen_bfloat16s(from, n, to);
}
OP_TOOLS_WIDE void bfloat16_to_float32(const uint16_t* from, int64_t n, float* to) {
  widen_bfloat16s(from, n, to);
}
// IEEE half without branches, so that the loop is done in vectors: the exponent is moved by a multiplication, which
// gets subnormals right as well.
[[gnu::always_inline]] inline float float32_of_float16(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
  float value;
  std::memcpy(&value, &magnitude, sizeof(value));
  value *= 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits |= (half & 0x7C00) == 0x7C00 ? 0x7F800000u : 0u;
  bits |= static_cast<uint32_t>(half & 0x8000) << 16;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
#ifdef OP_TOOLS_HAS_WIDE
#define OP_TOOLS_DEFAULT __attribute__((target("default")))
// Processors with wide vectors have an instruction for it.
__attribute__((target("arch=x86-64-v3"))) void float16_to_float32(const uint16_t* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < n; ++i) to[i] = float32_of_float16(from[i]);
}
__attribute__((target("arch=x86-64-v3"))) void widen_float16(const uint16_t* from, int64_t n, double* to) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_pd(to + i, _mm256_cvtps_pd(_mm_cvtph_ps(packed)));
  }
  for (; i < n; ++i) to[i] = static_cast<double>(float32_of_float16(from[i]));
}
#else
#define OP_TOOLS_DEFAULT
#endif
OP_TOOLS_DEFAULT void float16_to_float32(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = float32_of_float16(from[i]);
}
OP_TOOLS_DEFAULT void widen_float16(const uint16_t* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(float32_of_float16(from[i]));
}

}  // namespace

void load_float64(c10::ScalarType dtype, const void* data, int64_t first, int64_t n, double* to) {
  if (n == 0) return;  // of an empty tensor, whose address may be null
  switch (dtype) {
    case c10::ScalarType::Float:
      return widen_float32(static_cast<const float*>(data) + first, n, to);
    case c10::ScalarType::BFloat16:
      return widen_bfloat16(static_cast<const uint16_t*>(data) + first, n, to);
    case c10::ScalarType::Half:
      return widen_float16(static_cast<const uint16_t*>(data) + first, n, to);
    case c10::ScalarType::Double:
      std::memcpy(to, static_cast<const double*>(data) + first, static_cast<size_t>(n) * sizeof(double));
      return;
    case c10::ScalarType::ComplexHalf:
      return widen_float16(static_cast<const uint16_t*>(data) + 2 * first, 2 * n, to);
    case c10::ScalarType::ComplexFloat:
      return widen_float32(static_cast<const float*>(data) + 2 * first, 2 * n, to);
    case c10::ScalarType::ComplexDouble:
      std::memcpy(to, static_cast<const double*>(data) + 2 * first, static_cast<size_t>(2 * n) * sizeof(double));
      return;
#define OP_TOOLS_CASE(type, name) \
  case c10::ScalarType::name:     \
    return widen(static_cast<const type*>(data) + first, n, to);
      OP_TOOLS_INTEGER_TYPES(OP_TOOLS_CASE)
      OP_TOOLS_FLOAT8_TYPES(OP_TOOLS_CASE)
#undef OP_TOOLS_CASE
    default:
      return;
  }
}

bool has_float32(c10::ScalarType dtype) {
  switch (dtype) {
#define OP_TOOLS_CASE(type, name) case c10::ScalarType::name:
    OP_TOOLS_SMALL_INTEGER_TYPES(OP_TOOLS_CASE)
    OP_TOOLS_FLOAT8_TYPES(OP_TOOLS_CASE)
#undef OP_TOOLS_CASE
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
      return true;
    default:
      return false;
  }
}

void load_float32(c10::ScalarType dtype, const void* data, int64_t first, int64_t n, float* to) {
  switch (dtype) {
    case c10::ScalarType::BFloat16:
      return bfloat16_to_float32(static_cast<const uint16_t*>(data) + first, n, to);
    case c10::ScalarType::Half:
      return float16_to_float32(static_cast<const uint16_t*>(data) + first, n, to);
    case c10::ScalarType::Float:
      std::memcpy(to, static_cast<const float*>(data) + first, static_cast<size_t>(n) * sizeof(float));
      return;
#define OP_TOOLS_CASE(type, name) \
  case c10::ScalarType::name:     \
    return widen(static_cast<const type*>(data) + first, n, to);
      OP_TOOLS_SMALL_INTEGER_TYPES(OP_TOOLS_CASE)
      OP_TOOLS_FLOAT8_TYPES(OP_TOOLS_CASE)
#undef OP_TOOLS_CASE
    default:
      return;
  }
}

}  // namespace op_tools
