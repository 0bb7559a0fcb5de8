// look_at_near() (error_loops.h) for half types, of which nothing has to be widened first: half of the work that is
// left in it. Called by error_sums.cpp alone; pure, any thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "compare/metrics/error_kernels.h"

namespace op_tools {

bool has_near_float16();  // the processor has AVX-512

// kBlock elements as they lie in memory; `a` and `b` of the job are not looked at, and it must tolerate nothing. False
// where they are not near each other, or are of bfloat16 and too small or large for this: nothing is found then.
//
// sum_d, sum_d2, bb, and what ab and aa differ by from bb, are right to 4.2e-7 of the sum of their terms' sizes
// whatever the numbers are, and to 2e-8 where nobody chose them: eight terms at a time are added up as singles. All
// else is exact.
bool compare_near_float16(c10::ScalarType dtype, const uint16_t* a, const uint16_t* b, const LoopJob& job,
                          Found* found);

}  // namespace op_tools
