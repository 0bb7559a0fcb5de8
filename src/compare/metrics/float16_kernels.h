// sum_near() (error_kernels.h) for 16-bit floats in memory, without converting the block first: half of the time.
// Called by error_sums.cpp only; pure, any thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "compare/metrics/error_kernels.h"

namespace op_tools {

bool has_near_float16();  // the processor has AVX-512

// kBlock elements in memory; `a` and `b` of the job are not used, and its tolerance must be zero. False where the
// elements are not near each other, or are bfloat16 values too small or too large: *findings is unspecified then.
//
// sum_d, sum_d2, bb, and the differences of ab and aa from bb, are right to 4.2e-7 of the sum of their terms' sizes
// for all values, and to 2e-8 for typical ones: eight terms at a time are added in float32. All else is exact.
bool compare_near_float16(c10::ScalarType dtype, const uint16_t* a, const uint16_t* b, const LoopJob& job,
                          Found* findings);

}  // namespace op_tools
