#include "runs/value_difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace op_tools {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Projections are sums over all elements but masks with random signs: the mean of their squares is about the squared
// norm.
double norm_from_projections(const RecordedValue& value) {
  double squares = 0;
  for (const double projection : value.projections) squares += projection * projection;
  return std::sqrt(squares / kProjections);
}

double finite_norm(const RecordedValue& value, double elements) {
  if (value.norm <= sign_pattern::kMost) return value.norm;
  const double norm = norm_from_projections(value), largest = largest_of(value);
  return std::isfinite(norm) ? std::max(norm, largest) : std::sqrt(elements) * largest;
}

bool counts_differ(int64_t a, int64_t b) {
  return a >= 0 && b >= 0 && a != b;
}

// Also an infinity of the other sign.
bool nonfinite_differs(const RecordedValue& a, const RecordedValue& b) {
  const auto end_differs = [](double extreme_a, double extreme_b) {
    return (std::isinf(extreme_a) || std::isinf(extreme_b)) && extreme_a != extreme_b;
  };
  if (counts_differ(a.nan, b.nan) || counts_differ(a.inf, b.inf)) return true;
  return std::isnan(a.max) == std::isnan(b.max) && (end_differs(a.max, b.max) || end_differs(a.min, b.min));
}

// |A - B| is at least as large as each of these: its extremes, its norm and, times sqrt(n), its mean cannot differ
// more.
double proven_difference(const RecordedValue& a, const RecordedValue& b, double elements) {
  double least = 0;
  const auto at_least = [&](double difference) {
    if (std::isfinite(difference)) least = std::max(least, std::abs(difference));
  };
  at_least(a.norm - b.norm);
  at_least(a.max - b.max);
  at_least(a.min - b.min);
  at_least((a.mean - b.mean) * std::sqrt(elements));
  return least;
}

// Their difference may be less than float64 shows, and is at least 1. Hashes of other tools' dumps, which have no
// projections, may be of another kind.
bool are_other_integers(const RecordedValue& a, const RecordedValue& b) {
  const bool are_our_hashes = std::isfinite(a.projections[0]) && std::isfinite(b.projections[0]);
  return are_our_hashes && a.dtype == b.dtype && c10::isIntegralType(a.dtype, /*includeBool=*/true) && a.hash != 0 &&
         b.hash != 0 && a.hash != b.hash;
}

}  // namespace

int64_t numel_of(const Recording& run, const RecordedValue& value) {
  int64_t product = 1;
  for (const int64_t size : run.list(value.shape)) {
    if (__builtin_mul_overflow(product, size, &product)) return std::numeric_limits<int64_t>::max();
  }
  return product;
}

double rms_of(const Recording& run, const RecordedValue& value) {
  if (!value.known) return 0;
  const int64_t elements = numel_of(run, value);
  const auto count = static_cast<double>(elements);
  return elements > 0 ? finite_norm(value, count) / std::sqrt(count) : 0;
}

double largest_of(const RecordedValue& value) {
  double largest = 0;
  for (const double end : {value.min, value.max}) {
    if (std::abs(end) <= sign_pattern::kMost) largest = std::max(largest, std::abs(end));
  }
  return largest;
}

ValueDifference difference_of(const Recording& run_a, uint32_t number_a, const Recording& run_b, uint32_t number_b) {
  const RecordedValue &a = run_a.values[number_a], &b = run_b.values[number_b];
  ValueDifference difference;
  difference.other_dtype = a.dtype != b.dtype;
  if (run_a.list(a.shape) != run_b.list(b.shape)) {
    difference.kind = ValueDifference::Kind::kShape;
    difference.relative = kInfinite;
    return difference;
  }
  const auto elements = static_cast<double>(numel_of(run_a, a));
  const bool same = a.hash == b.hash && a.hash != 0 && !difference.other_dtype;
  if (same || elements == 0) {
    difference.kind = ValueDifference::Kind::kSame;
    return difference;
  }
  if (!a.known || !b.known) return difference;
  if (nonfinite_differs(a, b)) {
    difference.kind = ValueDifference::Kind::kNonfinite;
    difference.relative = kInfinite;
    return difference;
  }
  double squares = 0;
  for (size_t i = 0; i < kProjections; ++i) {
    const double difference = a.projections[i] - b.projections[i];
    squares += difference * difference;
  }
  const double estimate = std::sqrt(squares / kProjections);
  const bool has_numbers = std::isfinite(estimate) || (std::isfinite(a.norm) && std::isfinite(b.norm)) ||
                           (std::isfinite(a.max) && std::isfinite(b.max));  // a dump of another tool may have that only
  if (!has_numbers) return difference;
  difference.kind = ValueDifference::Kind::kNumbers;
  difference.norm = std::max(std::isfinite(estimate) ? estimate : 0, proven_difference(a, b, elements));
  if (are_other_integers(a, b)) difference.norm = std::max(difference.norm, 1.0);
  const double norm = std::max(finite_norm(a, elements), finite_norm(b, elements));
  if (difference.norm > 0) difference.relative = norm > 0 ? difference.norm / norm : kInfinite;
  return difference;
}

}  // namespace op_tools
