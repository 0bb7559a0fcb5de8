// The loops that error_sums.cpp consists of, over a block of elements at a time. Pure, any thread.
#pragma once

#include <cstdint>

#include "compare/metrics/tolerance.h"

namespace op_tools {

// A block stays in the first-level cache: work that only some blocks need is a second loop over it.
constexpr int64_t kBlock = 1024;
constexpr int64_t kMostLanes = 8;  // blocks of doubles are padded to a multiple of it

// Converted to float64, so that the same loop serves all dtypes.
struct Block {
  alignas(64) double a[2 * kBlock];  // result; a complex element takes two places
  alignas(64) double b[2 * kBlock];  // golden
  alignas(64) double d[kBlock];      // |a - b|, where requested
  alignas(64) double m[kBlock];      // |b|, likewise
};

// Elements in place: float32 or float64, aligned to their own size.
struct Numbers {
  const float* floats = nullptr;
  const double* doubles = nullptr;
};

struct LoopJob {
  Numbers a, b;                             // result, golden
  const double *d = nullptr, *m = nullptr;  // |a - b| and |b|, for the loops that start with them
  int64_t n = 0;                            // padded with zeros, which change no result, to a multiple of kMostLanes
  double least = 0, unit = 0;               // as in SumPlan
  double max_rel = 0;                       // the largest quotient d / m so far
  bool coarse = false;                      // a 16-bit float: its distinct quotients differ by more than float32 rounds
  Tolerance tolerance;
};

// The findings of a loop over a block.
struct Found {
  double max_d, sum_d, sum_d2, max_ulp, sum_ulp, max_m, ab, aa, bb;
  int64_t outside;
  bool quotient;  // max_rel grows
};

struct Sizes {
  double sum_of_squares, largest;
};

// All but the largest quotient, of real numbers. Both doubles, or `a` floats.
Found look_at_real(const LoopJob& job);

// The same for whole blocks of float32 whose elements are near each other, for half of the work. False where they are
// not near enough for the same exactness: *findings is unspecified then.
bool sum_near(const LoopJob& job, Found* findings);

// Result of the float32 loops. Elements are near when float32 holds their differences exactly, and also the sums of
// their ULPs over a block, which are multiples of half a unit. Excluded: values in the last powers of two, and
// differences where golden is below `least`.
struct Near {
  Found findings;
  bool below;  // there are such differences
};
bool is_near(const LoopJob& job, const Near& near);
// max_rel for these loops. Distinct quotients of 16-bit floats differ by more than float32 rounds; of other dtypes,
// every quotient that might be larger is checked in float64.
float known_quotient(const LoopJob& job);
bool tolerates(const Tolerance& tolerance);  // `outside` is not the number of elements that differ at all

// All but the products and the largest quotient, of `d` and `m`.
Found look_at_distances(const LoopJob& job);

// Where both sides have the same bits, only the sizes of `b` are needed.
Sizes sizes_of(const LoopJob& job);

// d and m of the first `n` real numbers.
void make_distances(int64_t n, Block* block);

// The largest of max_rel and all d / m. A division for each element would be half of the work, and few elements raise
// the largest quotient.
double largest_quotient(const LoopJob& job);

}  // namespace op_tools
