// How far two recorded tensors are apart, from their statistics. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

struct ValueDifference {
  enum class Kind : uint8_t {
    kSame,       // the bits are equal
    kNumbers,    // `norm` and `relative` say how far
    kNonfinite,  // NaN or infinities on a single side
    kShape,
    kUnknown,  // a side has no statistics
  };
  Kind kind = Kind::kUnknown;
  bool other_dtype = false;
  // An estimate of the norm of A - B, and of that by the larger of both norms. From the projections: right within a
  // factor of 2 nearly always, and never below the bound of the other statistics.
  double norm = 0;
  double relative = 0;  // infinite where a side is all zero, or not finite
};

OP_TOOLS_API ValueDifference difference_of(const Recording& run_a, uint32_t a, const Recording& run_b, uint32_t b);

OP_TOOLS_API int64_t numel_of(const Recording& run, const RecordedValue& value);
// Root of the mean of the squares of the finite elements, as far as it is known; else 0.
OP_TOOLS_API double rms_of(const Recording& run, const RecordedValue& value);
// The largest |element|; 0 where it is not known.
double largest_of(const RecordedValue& value);

}  // namespace op_tools
