// The elements of a tensor as float64, block by block: a loop over doubles then serves every dtype. Any thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

// The hot loops are compiled a second time for processors that have wide vectors. They are asked for their features: by
// the name of a processor ("haswell") all later ones would get the slow copy. Sanitizers start before the code that
// chooses between the two is ready.
#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OP_TOOLS_HAS_WIDE 1
#define OP_TOOLS_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OP_TOOLS_WIDE
#endif

// The integer dtypes and bool: (C++ type, name in c10::ScalarType).
#define OP_TOOLS_INTEGER_TYPES(_) \
  _(uint8_t, Byte)                \
  _(int8_t, Char)                 \
  _(int16_t, Short)               \
  _(int32_t, Int)                 \
  _(int64_t, Long)                \
  _(bool, Bool)                   \
  _(uint16_t, UInt16)             \
  _(uint32_t, UInt32)             \
  _(uint64_t, UInt64)

namespace op_tools {

// `n` elements from `first` on; complex ones give two doubles each. Exact, but for 64-bit integers beyond 2^53. Nothing
// is written for dtypes that are no numbers (quantized, packed).
void load_float64(c10::ScalarType dtype, const void* data, int64_t first, int64_t n, double* to);

// Does float32 represent all values of a real dtype exactly?
bool has_float32(c10::ScalarType dtype);

// The same as float32, for dtypes that float32 has.
void load_float32(c10::ScalarType dtype, const void* data, int64_t first, int64_t n, float* to);

}  // namespace op_tools
