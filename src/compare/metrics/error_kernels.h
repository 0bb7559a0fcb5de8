// The loops that error_sums.cpp consists of, over one block of elements at a time. Pure, any thread.
#pragma once

#include <cstdint>

#include "compare/metrics/tolerance.h"

namespace op_tools {

// A block stays in the first-level cache: what only some blocks need is a second loop over it.
constexpr int64_t kBlock = 1024;
constexpr int64_t kMostLanes = 8;  // blocks of doubles are restore_tensors up to a multiple of it

// Widened to doubles, so that one loop serves all dtypes.
struct Block {
  alignas(64) double a[2 * kBlock];  // result; a complex element is two numbers
  alignas(64) double b[2 * kBlock];  // golden
  alignas(64) double d[kBlock];      // |a - b|, where it is asked for
  alignas(64) double m[kBlock];      // |b|, likewise
};

// Numbers where they lie: floats or doubles, aligned to nothing but themselves.
struct Numbers {
  const float* singles = nullptr;
  const double* doubles = nullptr;
};

struct LoopJob {
  Numbers a, b;                             // result, golden
  const double *d = nullptr, *m = nullptr;  // |a - b| and |b|, for the loops that start with them
  int64_t n = 0;               // restore_tensors up with zeros, which change nothing: a multiple of kMostLanes
  double least = 0, unit = 0;  // as in SumPlan
  double max_rel = 0;          // the largest quotient d / m so far
  bool coarse = false;         // a half type: no two of its quotients are next to each other
  Tolerance tolerance;
};

// What one loop over a block finds.
struct Found {
  double max_d, sum_d, sum_d2, max_ulp, sum_ulp, max_m, ab, aa, bb;
  int64_t outside;
  bool quotient;  // max_rel grows
};

struct Sizes {
  double sum_of_squares, largest;
};

// All but the largest quotient, of real numbers. Both doubles, or `a` singles.
Found look_at_real(const LoopJob& job);

// The same for singles, whole blocks of them, that are near each other: half of the work. False where they are not, or
// not so that the numbers would be as exact: nothing is found then.
bool look_at_near(const LoopJob& job, Found* found);

// Of loops that look at singles: what is near in this sense has differences that singles hold exactly, and ULPs whose
// sums over a block they do, which are whole numbers of half units. Not in the last powers of two, nor where golden
// differs in numbers below `least`.
struct Near {
  Found found;
  bool below;  // there are such differences
};
bool is_near(const LoopJob& job, const Near& near);
// max_rel for them. Quotients of half types that are not the same differ by more than singles round. Of others, each
// that might be larger is looked at.
float known_quotient(const LoopJob& job);
bool tolerates(const Tolerance& tolerance);  // `outside` is not the number of elements that differ at all

// All but the products and the largest quotient, of `d` and `m`.
Found look_at_distances(const LoopJob& job);

// Where both sides have the same bits, only the sizes of `b` are left to be known.
Sizes sizes_of(const LoopJob& job);

// d and m of the first `n` real numbers.
void make_distances(int64_t n, Block* block);

// The largest of max_rel and all d / m. A division for each element would be half of the work, and few elements raise
// the largest quotient.
double largest_quotient(const LoopJob& job);

}  // namespace op_tools
