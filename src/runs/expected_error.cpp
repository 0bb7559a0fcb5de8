#include "runs/expected_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compare/metrics/tolerance.h"
#include "runs/call_keys.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// Found with runs of the same program under other thread counts (tests/proofs/compare_runs.py): an order of magnitude
// above their need.
constexpr double kOwnUnits = 2;  // of the output's rounding step
constexpr double kSumUnits = 8;  // of the accumulator's, for each square root of summed elements
constexpr double kGrowth = 16;   // a call may make its inputs' relative difference larger by this
// Where inputs differ by a share of their size, about that share of the elements lies that close to a threshold. A
// number that is expected to be less than an element in a thousand calls is none.
constexpr double kJumpedElements = 3;
constexpr double kJumpDensity = 16;
constexpr double kRareJump = 1e-3;
// A gradient's formula may make a difference larger by this (tanh near its ends, a normalisation of rows with little
// spread).
constexpr double kFormula = 4, kNormalization = 16, kLoss = 8;
constexpr double kUnknownLoss = 0.1;
// A call that adds nothing up (a function of each element) loses no more to cancellation by its own rounding.
constexpr double kMostOwnCancellation = 64;

struct Input {
  double elements = 0, rms = 0;
};

// As large as the elements that matter in the input of an operator that exponentiates: a mask of large negative numbers
// is lost in it, or makes up the result.
double exponents_rms(const Recording& run, const RecordedValue& value, const RecordedValue& output) {
  return std::min(rms_of(run, value), std::max(std::abs(value.max), rms_of(run, output)));
}

// The floating ones, the largest first.
std::vector<Input> floating_inputs(const Recording& run, const std::vector<uint32_t>& values, const CallInputs& inputs,
                                   const RecordedValue& output) {
  std::vector<Input> inputs_by_size;
  for (const uint32_t number : values) {
    const RecordedValue& value = run.values[number];
    if (inputs.by_element && value.shape != output.shape) continue;
    const DtypeClass kind = dtype_class(value.dtype);
    if (kind != DtypeClass::kFloating && kind != DtypeClass::kComplex) continue;
    const double rms = inputs.exponentiates ? exponents_rms(run, value, output) : rms_of(run, value);
    inputs_by_size.push_back({static_cast<double>(numel_of(run, value)), rms});
  }
  std::sort(inputs_by_size.begin(), inputs_by_size.end(),
            [](const Input& input, const Input& other) { return input.elements > other.elements; });
  return inputs_by_size;
}

// An input's difference is small beside the large elements of a divisor, and all that there is of a quotient by the
// smallest: Adam's step of a gradient whose elements are rounding alone.
double divisor_spread(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  const RecordedValue* divisor = nullptr;
  // Of a gradient the forward call's result stands before its inputs. A number that divides is no input.
  int before = inputs.divisor_from + (inputs.is_gradient ? 1 : 0);
  for (const uint32_t number : inputs.is_gradient ? inputs.forward : inputs.values) {
    const RecordedValue& value = run.values[number];
    if ((inputs.by_element && value.shape != output.shape) || before-- > 0) continue;
    if (value.known && dtype_class(value.dtype) == DtypeClass::kFloating) divisor = &value;
  }
  return divisor ? spread_of(run, *divisor) : 1;
}

// The terms that are added up in an element of the result: how many terms, and how large they are together before they
// cancel. A result that is far smaller shows its error relatively larger.
struct Sums {
  double summed = 1, added = 0;
};

Sums sums_of(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  const std::vector<Input> floating = floating_inputs(run, inputs.values, inputs, output);
  const double elements = std::max(1.0, static_cast<double>(numel_of(run, output)));
  Sums sums;
  double scale = 0, factor = 1;
  if (!floating.empty()) sums.summed = std::max(sums.summed, floating[0].elements / elements);
  if (inputs.sums_products && floating.size() > 1) {
    sums.summed = std::max(sums.summed, std::sqrt(floating[0].elements * floating[1].elements / elements));
    factor = std::max(floating[0].rms, floating[1].rms);
  }
  if (inputs.multiplies && sums.summed <= 1) return sums;
  if (inputs.adds_term && !inputs.values.empty()) {
    const RecordedValue& first = run.values[inputs.values[0]];
    if (first.known && dtype_class(first.dtype) == dtype_class(output.dtype)) {
      sums.added = 2 * std::max(rms_of(run, first), rms_of(run, output));
      return sums;
    }
  }
  for (const Input& input : floating) scale = std::max(scale, input.rms);
  sums.added = std::sqrt(sums.summed) * scale;
  if (inputs.sums_products && floating.size() == 2) {
    sums.added = std::sqrt(sums.summed) * floating[0].rms * floating[1].rms;
  } else if (inputs.sums_products && floating.size() > 2) {
    sums.added = std::max(scale, std::sqrt(sums.summed) * floating[0].rms * floating[1].rms);
    sums.added = std::min(sums.added, std::sqrt(sums.summed) * std::max(factor, 1.0) * scale);
  }
  // Of a channel with little spread more is taken out than is left.
  if (inputs.normalizes) sums.added = std::max(sums.added, kFormula * rms_of(run, output));
  return sums;
}

// A gradient has a size of its own, far from that of the tensors of the forward call: its results are sums of products
// of the gradients that come in with the forward call's inputs and results.
Sums sums_of_gradient(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  const double elements = std::max(1.0, static_cast<double>(numel_of(run, output)));
  const double rms = rms_of(run, output);
  const std::vector<Input> gradients = floating_inputs(run, inputs.values, inputs, output);
  const std::vector<Input> factors = floating_inputs(run, inputs.forward, inputs, output);
  Sums sums;
  double largest_factor = 1, factor_elements = 1;
  for (const Input& factor : factors) {
    largest_factor = std::max(largest_factor, factor.rms);
    factor_elements = std::max(factor_elements, factor.elements);
  }
  for (const Input& gradient : gradients) {
    const double terms = std::max(1.0, gradient.elements / elements);
    sums.summed = std::max(sums.summed, terms);
    if (terms > 1) sums.added = std::max(sums.added, std::sqrt(terms) * gradient.rms * largest_factor);
    if (inputs.normalizes) sums.added = std::max(sums.added, gradient.rms * largest_factor);
    if (!inputs.sums_products) continue;
    for (const Input& factor : factors) {
      const double products = std::max(1.0, std::sqrt(gradient.elements * factor.elements / elements));
      sums.summed = std::max(sums.summed, products);
      sums.added = std::max(sums.added, std::sqrt(products) * gradient.rms * factor.rms);
    }
  }
  if (inputs.normalizes) sums.added = std::max(sums.added, rms) * kNormalization;
  // Near its smallest value a loss is the difference of numbers that are nearly equal: of logits and labels.
  const bool is_loss = gradients.size() == 1 && gradients[0].elements == 1 && elements > 1;
  if (is_loss) {
    const double loss = inputs.forward_result > 0 ? inputs.forward_result : kUnknownLoss;
    sums.added = std::max(sums.added, kLoss * rms * largest_factor / std::min(1.0, loss));
    sums.summed = std::max(sums.summed, factor_elements);
  }
  sums.added = std::max(sums.added, kFormula * rms);
  return sums;
}

}  // namespace

double spread_of(const Recording& run, const RecordedValue& value) {
  const bool one_sign = value.min > 0 || value.max < 0;
  const double rms = rms_of(run, value);
  const double smallest = one_sign ? std::min(std::abs(value.min), std::abs(value.max))
                                   : rms / std::max(1.0, static_cast<double>(numel_of(run, value)));
  // All zero: it is made within the call (_fused_adam_ in the first step).
  return smallest > 0 ? std::max(1.0, rms / smallest) : std::numeric_limits<double>::infinity();
}

c10::ScalarType coarser(c10::ScalarType type, c10::ScalarType other) {
  const auto unit = [](c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Undefined ? 0.0 : rounding_of(dtype).unit;
  };
  return unit(other) > unit(type) ? other : type;
}

double expected_difference(const Recording& run, const CallInputs& inputs, const RecordedValue& output) {
  const DtypeClass kind = dtype_class(output.dtype);
  if (kind != DtypeClass::kFloating && kind != DtypeClass::kComplex) {
    return inputs.difference > 0 ? std::numeric_limits<double>::infinity() : 0;
  }
  const double elements = std::max(1.0, static_cast<double>(numel_of(run, output)));
  const double rms = rms_of(run, output);
  const Sums sums = inputs.is_gradient ? sums_of_gradient(run, inputs, output) : sums_of(run, inputs, output);
  const double cancelled = rms > 0 ? std::max(1.0, sums.added / rms) : 1e6;
  const c10::ScalarType coarsest = inputs.coarsest == c10::ScalarType::Undefined ? output.dtype : inputs.coarsest;
  Rounding rounding = rounding_of(coarsest);
  if (inputs.tf32 && coarsest == c10::ScalarType::Float) rounding.unit = rounding.accumulate = tf32_unit();
  const double accumulated = inputs.composite ? rounding.unit : rounding.accumulate;
  const bool adds_up = inputs.sums_products || sums.summed > 1;
  const double own = adds_up ? cancelled : std::min(cancelled, kMostOwnCancellation);
  const double summing = own * kSumUnits * accumulated * std::pow(sums.summed, 0.25);
  double expected =
      kOwnUnits * rounding.unit + (inputs.selects ? 0 : summing) + cancelled * kGrowth * inputs.difference;
  if (inputs.jumps && inputs.may_have_jumped && rms > 0) {
    const double jumped = elements * std::min(1.0, inputs.difference);
    if (jumped > kRareJump) {
      const double share = std::min(1.0, (kJumpedElements + kJumpDensity * jumped) / elements);
      expected += std::sqrt(share) * largest_of(output) / rms;
    }
  }
  if (inputs.divides && inputs.difference > 0) {
    expected += kGrowth * inputs.difference * divisor_spread(run, inputs, output);
  }
  // A difference of an exponent is a relative difference of the result, however large the exponents are (those of a
  // mask).
  if (inputs.exponentiates) expected += kGrowth * inputs.absolute;
  return expected;
}

}  // namespace op_tools
