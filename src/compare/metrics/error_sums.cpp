#include "compare/metrics/error_sums.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "compare/metrics/error_kernels.h"
#include "compare/metrics/float16_kernels.h"
#include "tensor/float_conversion.h"
#include "tensor/parallel_for.h"

namespace op_tools {
namespace {

constexpr int64_t kBlocksPerTask = 64;

// |a - b| of integers, subtracted as unsigned numbers: no overflow, no wrap.
template <class T>
void subtract(const void* a, const void* b, int64_t first, int64_t n, double* d) {
  const T* left = static_cast<const T*>(a) + first;
  const T* right = static_cast<const T*>(b) + first;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t l = static_cast<uint64_t>(left[i]), r = static_cast<uint64_t>(right[i]);
    d[i] = static_cast<double>(left[i] > right[i] ? l - r : r - l);
  }
}

void subtract_exactly(c10::ScalarType dtype, const void* a, const void* b, int64_t first, int64_t n, double* d) {
  switch (dtype) {
#define OP_TOOLS_CASE(type, name) \
  case c10::ScalarType::name:     \
    return subtract<type>(a, b, first, n, d);
    OP_TOOLS_INTEGER_TYPES(OP_TOOLS_CASE)
#undef OP_TOOLS_CASE
    default:
      return;
  }
}

double as_dtype(double golden, double limit) {
  return std::fabs(golden) > limit ? std::copysign(std::numeric_limits<double>::infinity(), golden) : golden;
}

enum class Special { kNone, kNan, kPositive, kNegative };

Special special_of(const double* parts, int count, double limit) {
  Special special = Special::kNone;
  for (int i = 0; i < count; ++i) {
    const double part = as_dtype(parts[i], limit);
    if (std::isnan(part)) return Special::kNan;
    if (std::isinf(part) && special == Special::kNone) special = part > 0 ? Special::kPositive : Special::kNegative;
  }
  return special;
}

void count(Special special, NonFinite* counts) {
  if (special == Special::kNan) ++counts->nan;
  if (special == Special::kPositive) ++counts->pos_inf;
  if (special == Special::kNegative) ++counts->neg_inf;
}

// A complex number is NaN when either part is: the other part then says nothing.
bool same_special(const double* a, const double* b, int parts, double limit, bool nan_equal) {
  const auto is_nan = [parts](const double* number) { return std::any_of(number, number + parts, std::isnan<double>); };
  if (parts > 1 && nan_equal && is_nan(a) && is_nan(b)) return true;
  for (int i = 0; i < parts; ++i) {
    const double golden = as_dtype(b[i], limit);
    if (a[i] != golden && !(nan_equal && std::isnan(a[i]) && std::isnan(golden))) return false;
  }
  return true;
}

// Counts the elements that are not finite on a side, and takes them out of the numbers.
void take_out_specials(const SumPlan& plan, int64_t first, int64_t n, Block* block, ErrorSums* sums) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const int parts = plan.is_complex ? 2 : 1;
  for (int64_t i = 0; i < n; ++i) {
    double* a = block->a + parts * i;
    double* b = block->b + parts * i;
    const Special result = special_of(a, parts, kAny);
    const Special golden = special_of(b, parts, plan.limit);
    if (result == Special::kNone && golden == Special::kNone) continue;
    count(result, &sums->result);
    count(golden, &sums->golden);
    if (!same_special(a, b, parts, plan.limit, plan.options->nan_equal)) {
      ++sums->mismatches;
      ++sums->outside;
      if (sums->mismatch_at < 0) sums->mismatch_at = first + i;
    }
    std::fill_n(a, parts, 0.0);
    std::fill_n(b, parts, 0.0);
    block->d[i] = block->m[i] = 0;
  }
}

void complex_distances(int64_t n, Block* block) {
  for (int64_t i = 0; i < n; ++i) {
    const double* a = block->a + 2 * i;
    const double* b = block->b + 2 * i;
    block->d[i] = std::hypot(a[0] - b[0], a[1] - b[1]);
    block->m[i] = std::hypot(b[0], b[1]);
  }
}

void count_over(const SumPlan& plan, const Block& block, int64_t n, ErrorSums* sums) {
  const DiffOptions& options = *plan.options;
  for (size_t k = 0; k < options.relative_limits.size(); ++k) {
    const double limit = options.relative_limits[k];
    for (int64_t i = 0; i < n; ++i) sums->over_relative[k] += block.d[i] > limit * block.m[i];
  }
  for (size_t k = 0; k < options.ulp_limits.size(); ++k) {
    const double limit = options.ulp_limits[k] * plan.unit;
    for (int64_t i = 0; i < n; ++i) {
      const double size = std::max(block.m[i], plan.least);
      sums->over_ulp[k] += block.d[i] > limit * std::exp2(std::ilogb(size));
    }
  }
  if (options.small.below <= 0) return;
  for (int64_t i = 0; i < n; ++i) {
    if (block.m[i] <= options.small.below)
      sums->small_outside += block.d[i] > options.small.atol;
    else
      sums->normal_outside += block.d[i] > options.small.rtol * block.m[i];
  }
}

bool is_16_bit_float(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Half;
}

bool counts_more(const DiffOptions& options) {
  return !options.relative_limits.empty() || !options.ulp_limits.empty() || options.small.below > 0;
}

class Summing {
 public:
  Summing(const SumPlan& plan, const void* result, const void* golden, int64_t numel)
      : plan_(plan),
        result_(result),
        golden_(golden),
        parts_(plan.is_complex ? 2 : 1),
        item_(plan.result_dtype == plan.golden_dtype ? c10::elementSize(plan.result_dtype) : 0),
        is_simple_(!plan.is_exact && !plan.is_complex && plan.scale == 1),
        coarse_(is_16_bit_float(plan.result_dtype)),
        asks_ahead_(coarse_ && static_cast<size_t>(numel) * item_ > kInCaches),
        tolerance_(plan.is_exact ? Tolerance() : plan.options->tolerance),
        by_float16_(is_simple_ && coarse_ && item_ > 0 && !tolerates(tolerance_) && has_near_float16()) {}

  // Until these many blocks were not near, sum_near() is tried first.
  void begin_task() { chances_ = kChances; }

  void add(int64_t first, int64_t n, ErrorSums* sums) {
    const bool same = same_bits(first, n);
    sums->bits_equal = sums->bits_equal && same;
    LoopJob job;
    job.least = plan_.least;
    job.unit = plan_.unit;
    job.max_rel = max_rel_;
    job.coarse = coarse_;
    job.tolerance = tolerance_;
    job.n = (n + kMostLanes - 1) / kMostLanes * kMostLanes;
    if (same && parts_ == 1 && plan_.scale == 1) {
      if (asks_ahead_) ask_for(first + kBlocksAhead * kBlock);
      job.b = numbers_of(plan_.golden_dtype, golden_, first, n, job.n, golden_floats_, block_.b);
      const Sizes sizes = sizes_of(job);
      if (fits(sizes.sum_of_squares, sizes.sum_of_squares, sizes.largest)) {
        sums->max_m = std::max(sums->max_m, sizes.largest);
        for (double* sum : {&sums->ab, &sums->aa, &sums->bb}) *sum += sizes.sum_of_squares;
        return;
      }
    }
    std::optional<Found> findings = by_float16_ && n == kBlock ? found_nearby(first, job) : std::nullopt;
    if (!findings) {
      job.b = numbers_of(plan_.golden_dtype, golden_, first, n, job.n, golden_floats_, block_.b);
      job.a = numbers_of(plan_.result_dtype, result_, first, n, job.n, result_floats_, block_.a);
      if (is_simple_) findings = found_simply(job);
    }
    const bool more = counts_more(*plan_.options);
    if (findings) {
      if (findings->max_d > max_d_ || more || findings->quotient) {
        widen(first, n, job);
        make_distances(job.n, &block_);
      }
    } else {
      widen(first, n, job);
      findings = look_closely(first, n, job, sums);
    }
    job.d = block_.d;
    job.m = block_.m;
    if (findings->quotient) sums->max_rel = max_rel_ = largest_quotient(job);
    if (findings->max_d > max_d_) {
      sums->worst_at = first + (std::find(block_.d, block_.d + n, findings->max_d) - block_.d);
      max_d_ = findings->max_d;
    }
    if (more) count_over(plan_, block_, n, sums);
    add_found(*findings, sums);
  }

 private:
  static constexpr int kChances = 4;
  static constexpr int64_t kBlocksAhead = 2;
  static constexpr size_t kInCaches = 1 << 20;  // bytes of a side

  // The block at `first`, if it exists, is loaded into the caches while others are compared: equal blocks of
  // 16-bit floats are done so quickly that they would wait for memory.
  void ask_for(int64_t first) const {
    constexpr size_t kLine = 64;
    for (const void* const side : {result_, golden_}) {
      const char* const begin = static_cast<const char*>(side) + static_cast<size_t>(first) * item_;
      for (size_t i = 0; i < kBlock * item_; i += kLine) __builtin_prefetch(begin + i);
    }
  }

  bool same_bits(int64_t first, int64_t n) const {
    const size_t begin = static_cast<size_t>(first) * item_;
    return item_ > 0 && std::memcmp(static_cast<const char*>(result_) + begin,
                                    static_cast<const char*>(golden_) + begin, static_cast<size_t>(n) * item_) == 0;
  }

  bool fits(double sum_a, double sum_b, double largest) const {
    return std::isfinite(sum_a) && std::isfinite(sum_b) && largest <= plan_.limit;
  }

  // Whole blocks of float32 and float64 are used in place, 16-bit floats are converted to float32, all else to float64.
  Numbers numbers_of(c10::ScalarType dtype, const void* from, int64_t first, int64_t n, int64_t full, float* floats,
                     double* doubles) const {
    if (is_simple_ && n == kBlock) {
      if (dtype == c10::ScalarType::Float)
        return {.floats = static_cast<const float*>(from) + first, .doubles = nullptr};
      if (dtype == c10::ScalarType::Double)
        return {.floats = nullptr, .doubles = static_cast<const double*>(from) + first};
      if (is_16_bit_float(dtype)) {
        load_float32(dtype, from, first, n, floats);
        return {.floats = floats, .doubles = nullptr};
      }
    }
    load_float64(dtype, from, first, n, doubles);
    std::fill(doubles + parts_ * n, doubles + parts_ * full, 0.0);
    return {.floats = nullptr, .doubles = doubles};
  }

  // The numbers that numbers_of() left elsewhere.
  void widen(int64_t first, int64_t n, const LoopJob& job) {
    if (job.a.doubles != block_.a) load_float64(plan_.result_dtype, result_, first, n, block_.a);
    if (job.b.doubles != block_.b) load_float64(plan_.golden_dtype, golden_, first, n, block_.b);
  }

  std::optional<Found> found_nearby(int64_t first, const LoopJob& job) {
    const auto at = [&](const void* from) { return static_cast<const uint16_t*>(from) + first; };
    Found findings;
    if (chances_ > 0 && compare_near_float16(plan_.result_dtype, at(result_), at(golden_), job, &findings))
      return findings;
    return std::nullopt;
  }

  // Nothing where not all numbers are finite.
  std::optional<Found> found_simply(const LoopJob& job) {
    Found findings;
    if (chances_ > 0 && job.a.floats && job.b.floats) {
      if (sum_near(job, &findings)) return findings;
      --chances_;
    }
    // A sum of squares is finite when all numbers are (and none is huge, which costs time only).
    findings = look_at_real(job);
    return fits(findings.aa, findings.bb, findings.max_m) ? std::optional(findings) : std::nullopt;
  }

  // Integers, complex elements, and blocks with elements that are not finite.
  Found look_closely(int64_t first, int64_t n, LoopJob job, ErrorSums* sums) {
    const int64_t full = job.n;
    if (plan_.is_exact) {
      subtract_exactly(plan_.result_dtype, result_, golden_, first, n, block_.d);
      for (int64_t i = 0; i < full; ++i) block_.m[i] = std::fabs(block_.b[i]);
      std::fill(block_.d + n, block_.d + full, 0.0);
    } else {
      parts_ == 2 ? complex_distances(full, &block_) : make_distances(full, &block_);
      take_out_specials(plan_, first, n, &block_, sums);
    }
    if (plan_.scale != 1) {
      for (int64_t i = 0; i < parts_ * full; ++i) {
        block_.a[i] *= plan_.scale;
        block_.b[i] *= plan_.scale;
      }
      for (int64_t i = 0; i < full; ++i) block_.d[i] *= plan_.scale;
    }
    job.d = block_.d;
    job.m = block_.m;
    Found findings = look_at_distances(job);
    job.a = {.floats = nullptr, .doubles = block_.a};
    job.b = {.floats = nullptr, .doubles = block_.b};
    job.n = parts_ * full;
    const Found products = look_at_real(job);
    findings.ab = products.ab;
    findings.aa = products.aa;
    findings.bb = products.bb;
    return findings;
  }

  static void add_found(const Found& findings, ErrorSums* sums) {
    sums->max_d = std::max(sums->max_d, findings.max_d);
    sums->max_m = std::max(sums->max_m, findings.max_m);
    sums->max_ulp = std::max(sums->max_ulp, findings.max_ulp);
    sums->sum_d += findings.sum_d;
    sums->sum_d2 += findings.sum_d2;
    sums->sum_ulp += findings.sum_ulp;
    sums->ab += findings.ab;
    sums->aa += findings.aa;
    sums->bb += findings.bb;
    sums->outside += findings.outside;
  }

  const SumPlan& plan_;
  const void* const result_;
  const void* const golden_;
  const int64_t parts_;
  const size_t item_;  // 0: the dtypes differ
  const bool is_simple_, coarse_, asks_ahead_;
  const Tolerance tolerance_;
  const bool by_float16_;
  int chances_ = 0;
  double max_d_ = 0, max_rel_ = 0;  // of all tasks so far: smaller differences need not be looked for
  Block block_;
  alignas(64) float result_floats_[kBlock], golden_floats_[kBlock];
};

void merge(const ErrorSums& from, ErrorSums* to) {
  if (from.max_d > to->max_d) to->worst_at = from.worst_at;
  if (to->mismatch_at < 0) to->mismatch_at = from.mismatch_at;
  for (const auto member : {&ErrorSums::max_d, &ErrorSums::max_rel, &ErrorSums::max_ulp, &ErrorSums::max_m}) {
    to->*member = std::max(to->*member, from.*member);
  }
  for (const auto member :
       {&ErrorSums::sum_d, &ErrorSums::sum_d2, &ErrorSums::sum_ulp, &ErrorSums::ab, &ErrorSums::aa, &ErrorSums::bb}) {
    to->*member += from.*member;
  }
  for (const auto member :
       {&ErrorSums::outside, &ErrorSums::mismatches, &ErrorSums::small_outside, &ErrorSums::normal_outside}) {
    to->*member += from.*member;
  }
  for (const auto member : {&NonFinite::nan, &NonFinite::pos_inf, &NonFinite::neg_inf}) {
    to->result.*member += from.result.*member;
    to->golden.*member += from.golden.*member;
  }
  to->bits_equal = to->bits_equal && from.bits_equal;
  for (size_t i = 0; i < to->over_relative.size(); ++i) to->over_relative[i] += from.over_relative[i];
  for (size_t i = 0; i < to->over_ulp.size(); ++i) to->over_ulp[i] += from.over_ulp[i];
}

}  // namespace

ErrorSums sum_errors(const SumPlan& plan, const void* result, const void* golden, int64_t numel) {
  const int64_t per_task = kBlock * kBlocksPerTask;
  const int64_t tasks = (numel + per_task - 1) / per_task;
  std::vector<ErrorSums> partial(static_cast<size_t>(tasks));
  parallel_for(tasks, per_task, [&](int64_t begin, int64_t end) {
    Summing summing(plan, result, golden, numel);
    for (int64_t task = begin; task < end; ++task) {
      summing.begin_task();
      const int64_t last = std::min(numel, (task + 1) * per_task);
      for (int64_t first = task * per_task; first < last; first += kBlock) {
        summing.add(first, std::min(kBlock, last - first), &partial[static_cast<size_t>(task)]);
      }
    }
  });
  ErrorSums sums;
  sums.bits_equal = plan.result_dtype == plan.golden_dtype;
  for (const ErrorSums& task_sums : partial)
    merge(task_sums, &sums);  // in order: the sums do not depend on the threads
  return sums;
}

int64_t count_unexpected_nonfinite(const SumPlan& plan, const void* result, const void* golden, const void* reference,
                                   int64_t numel) {
  const int parts = plan.is_complex ? 2 : 1;
  double left[2 * kBlock], middle[2 * kBlock], right[2 * kBlock];
  constexpr double kAny = std::numeric_limits<double>::infinity();
  int64_t unexpected = 0;
  for (int64_t first = 0; first < numel; first += kBlock) {
    const int64_t n = std::min(kBlock, numel - first);
    load_float64(plan.result_dtype, result, first, n, left);
    load_float64(plan.golden_dtype, golden, first, n, middle);
    load_float64(plan.result_dtype, reference, first, n, right);
    for (int64_t i = 0; i < parts * n; i += parts) {
      const bool special = special_of(left + i, parts, kAny) != Special::kNone ||
                           special_of(middle + i, parts, plan.limit) != Special::kNone;
      if (!special || same_special(left + i, middle + i, parts, plan.limit, true)) continue;
      // The CPU in the same dtype has it so, too; or has the other's infinity, where this has a number.
      if (same_special(left + i, right + i, parts, kAny, true)) continue;
      const bool both_finite =
          special_of(left + i, parts, kAny) == Special::kNone && special_of(right + i, parts, kAny) == Special::kNone;
      if (!both_finite) ++unexpected;
    }
  }
  return unexpected;
}

}  // namespace op_tools
