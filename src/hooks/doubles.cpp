#include "hooks/doubles.h"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Float8_e8m0fnu.h>

#include <cstring>
#include <type_traits>

namespace op_tools {
namespace {

template <class T>
void widen(const T* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_arithmetic_v<T>)
      to[i] = static_cast<double>(from[i]);
    else
      to[i] = static_cast<double>(static_cast<float>(from[i]));
  }
}

OP_TOOLS_WIDE void widen_single(const float* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(from[i]);
}
OP_TOOLS_WIDE void widen_brain(const uint16_t* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    to[i] = static_cast<double>(value);
  }
}
// IEEE half without branches, so that the loop is done in vectors: the exponent is moved by a multiplication, which
// gets subnormals right as well.
OP_TOOLS_WIDE void widen_half(const uint16_t* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = static_cast<uint32_t>(from[i] & 0x7FFF) << 13;
    float value;
    std::memcpy(&value, &magnitude, sizeof(value));
    value *= 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    bits |= (from[i] & 0x7C00) == 0x7C00 ? 0x7F800000u : 0u;
    bits |= static_cast<uint32_t>(from[i] & 0x8000) << 16;
    std::memcpy(&value, &bits, sizeof(value));
    to[i] = static_cast<double>(value);
  }
}

}  // namespace

void load_doubles(c10::ScalarType dtype, const void* data, int64_t first, int64_t n, double* to) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return widen_single(static_cast<const float*>(data) + first, n, to);
    case c10::ScalarType::BFloat16:
      return widen_brain(static_cast<const uint16_t*>(data) + first, n, to);
    case c10::ScalarType::Half:
      return widen_half(static_cast<const uint16_t*>(data) + first, n, to);
    case c10::ScalarType::Double:
      std::memcpy(to, static_cast<const double*>(data) + first, static_cast<size_t>(n) * sizeof(double));
      return;
    case c10::ScalarType::ComplexHalf:
      return widen_half(static_cast<const uint16_t*>(data) + 2 * first, 2 * n, to);
    case c10::ScalarType::ComplexFloat:
      return widen_single(static_cast<const float*>(data) + 2 * first, 2 * n, to);
    case c10::ScalarType::ComplexDouble:
      std::memcpy(to, static_cast<const double*>(data) + 2 * first, static_cast<size_t>(2 * n) * sizeof(double));
      return;
#define OP_TOOLS_CASE(type, name) \
  case c10::ScalarType::name:     \
    return widen(static_cast<const type*>(data) + first, n, to);
      OP_TOOLS_WHOLE_NUMBERS(OP_TOOLS_CASE)
      OP_TOOLS_CASE(c10::Float8_e5m2, Float8_e5m2)
      OP_TOOLS_CASE(c10::Float8_e4m3fn, Float8_e4m3fn)
      OP_TOOLS_CASE(c10::Float8_e5m2fnuz, Float8_e5m2fnuz)
      OP_TOOLS_CASE(c10::Float8_e4m3fnuz, Float8_e4m3fnuz)
      OP_TOOLS_CASE(c10::Float8_e8m0fnu, Float8_e8m0fnu)
#undef OP_TOOLS_CASE
    default:
      return;
  }
}

}  // namespace op_tools
