#include "runs/expected_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compare/metrics/tolerance.h"
#include "runs/call_keys.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// Found with runs of the same program under other thread counts (tests/proofs/compare_runs.py): one order of magnitude
// above what they need.
constexpr double kOwnUnits = 2;  // of the output's rounding step
constexpr double kSumUnits = 8;  // of the accumulator's, for each square root of summed elements
constexpr double kGrowth = 16;   // a call may make its inputs' relative difference larger by this
constexpr double kJumpedElements = 3;
// A call that adds nothing up (a function of each element) loses no more to cancellation by its own rounding.
constexpr double kMostOwnCancellation = 64;

struct Input {
  double elements = 0, rms = 0;
};

// The floating inputs, the largest first.
std::vector<Input> floating_inputs(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  std::vector<Input> found;
  for (const uint32_t number : inputs.values) {
    const RecordedValue& value = run.values[number];
    if (inputs.by_element && value.shape != output.shape) continue;
    const DtypeClass kind = dtype_class(value.dtype);
    if (kind != DtypeClass::kFloating && kind != DtypeClass::kComplex) continue;
    found.push_back({static_cast<double>(numel_of(run, value)), rms_of(run, value)});
  }
  std::sort(found.begin(), found.end(), [](const Input& one, const Input& two) { return one.elements > two.elements; });
  return found;
}

// How many times larger than the smallest element of the divisor its elements usually are. What an input differs by is
// small beside its large elements, and all that there is of a quotient by the smallest: Adam's step of a gradient whose
// elements are rounding alone.
double divisor_spread(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  const RecordedValue* divisor = nullptr;
  for (const uint32_t number : inputs.values) {
    const RecordedValue& value = run.values[number];
    if (!value.known || dtype_class(value.dtype) != DtypeClass::kFloating) continue;
    if (!inputs.by_element || value.shape == output.shape) divisor = &value;
  }
  if (!divisor) return 1;
  const bool one_sign = divisor->min > 0 || divisor->max < 0;
  const double rms = rms_of(run, *divisor);
  const double smallest = one_sign ? std::min(std::abs(divisor->min), std::abs(divisor->max))
                                   : rms / std::max(1.0, static_cast<double>(numel_of(run, *divisor)));
  // All zero: it is made within the call (_fused_adam_ in the first step).
  return smallest > 0 ? std::max(1.0, rms / smallest) : std::numeric_limits<double>::infinity();
}

}  // namespace

c10::ScalarType coarser(c10::ScalarType one, c10::ScalarType other) {
  const auto unit = [](c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Undefined ? 0.0 : rounding_of(dtype).unit;
  };
  return unit(other) > unit(one) ? other : one;
}

double expected_difference(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  const DtypeClass kind = dtype_class(output.dtype);
  if (kind != DtypeClass::kFloating && kind != DtypeClass::kComplex) {
    return inputs.difference > 0 ? std::numeric_limits<double>::infinity() : 0;
  }
  const std::vector<Input> all = floating_inputs(run, inputs, output);
  const double elements = std::max(1.0, static_cast<double>(numel_of(run, output)));
  double summed = 1, scale = 0, factor = 1;
  if (!all.empty()) summed = std::max(summed, all[0].elements / elements);
  if (inputs.sums_products && all.size() > 1) {
    summed = std::max(summed, std::sqrt(all[0].elements * all[1].elements / elements));
    factor = std::max(all[0].rms, all[1].rms);
  }
  for (const Input& input : all) scale = std::max(scale, input.rms);
  // What is added up, before it cancels: a result that is far smaller shows its error relatively larger.
  const double rms = rms_of(run, output);
  double added = std::sqrt(summed) * scale;
  if (inputs.sums_products && all.size() > 1) {
    added = std::max(scale, std::sqrt(summed) * all[0].rms * all[1].rms);
    added = std::min(added, std::sqrt(summed) * std::max(factor, 1.0) * scale);
  }
  const double cancelled = rms > 0 ? std::max(1.0, added / rms) : 1e6;
  const Rounding rounding = rounding_of(inputs.coarsest == c10::ScalarType::Undefined ? output.dtype : inputs.coarsest);
  const double accumulated = inputs.composite ? rounding.unit : rounding.accumulate;
  const bool adds_up = inputs.sums_products || summed > 1;
  const double own = adds_up ? cancelled : std::min(cancelled, kMostOwnCancellation);
  double expected = kOwnUnits * rounding.unit + own * kSumUnits * accumulated * std::pow(summed, 0.25) +
                    cancelled * kGrowth * inputs.difference;
  if (inputs.jumps && inputs.difference > 0 && rms > 0) {
    expected += std::sqrt(kJumpedElements / elements) * largest_of(output) / rms;
  }
  if (inputs.divides && inputs.difference > 0) {
    expected += kGrowth * inputs.difference * divisor_spread(run, inputs, output);
  }
  // A difference of an exponent is a relative one of the result, however large the exponents are (those of a mask).
  if (inputs.exponentiates) expected += kGrowth * inputs.absolute;
  return expected;
}

}  // namespace op_tools
