#include "runs/end_results.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compare/metrics/tolerance.h"
#include "runs/call_keys.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// What rounding makes of a loss, a gradient or a parameter in the steps of a recording; measured with runs that round
// otherwise (tests/proofs/no_false_all_clear.py).
constexpr double kUsual = 1e-3;
constexpr double kUnits = 64;
// A gradient that is a sum of zero is rounding alone. Beside the largest of its step it is nothing.
constexpr double kSmallGradient = 0.01;
// Nearer than that nothing is left to be explained.
constexpr double kEqual = 1e-4;
// Numbers among the arguments that differ by less come from results that were read.
constexpr double kSameScalar = 1e-4;
constexpr double kAny = std::numeric_limits<double>::infinity();

// A result and the last call that it was seen in.
struct Seen {
  uint32_t value = kNoCall, call = kNoCall;
};

struct EndResults {
  std::map<int64_t, std::vector<Seen>> losses;                                 // by step
  std::map<std::pair<int64_t, std::string_view>, Seen> gradients, parameters;  // by step and name
  // By step: values that the engine gives to leaves; all that backward calls make.
  std::map<int64_t, std::vector<uint32_t>> leaf_gradients, made_backward;
  std::map<int64_t, double> largest_gradient;  // by step: root of the mean square
};

bool is_floating(const Recording& run, uint32_t value) {
  return run.values[value].known && dtype_class(run.values[value].dtype) == DtypeClass::kFloating;
}

// A backward pass begins with the gradient of its loss: the backward call after forward ones belongs to the call that
// made the loss.
void add_losses(const Recording& run, EndResults* results) {
  std::unordered_map<uint64_t, uint32_t> forward;
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    if (call.phase == Phase::kForward) {
      forward.emplace(call.id, i);
      continue;
    }
    if (i == 0 || run.calls[i - 1].phase == Phase::kBackward) continue;
    const auto made = forward.find(call.forward_id);
    if (call.forward_id == 0 || made == forward.end()) continue;
    for (const RecordedUse& use : run.outputs(run.calls[made->second])) {
      if (numel_of(run, run.values[use.value]) != 1 || !is_floating(run, use.value)) continue;
      results->losses[call.step].push_back({use.value, made->second});
      break;
    }
  }
}

EndResults end_results(const Recording& run) {
  constexpr std::string_view kGradientOf = "grad:", kWritten = "written ";
  EndResults results;
  add_losses(run, &results);
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    if (call.phase == Phase::kBackward) {
      for (const RecordedUse& use : run.outputs(call)) results.made_backward[call.step].push_back(use.value);
    }
    if (call.phase == Phase::kBackward && call.outputs == 1 && plain_name(run.string(call.op)) == "detach") {
      results.leaf_gradients[call.step].push_back(run.outputs(call)[0].value);
    }
    for (uint32_t use = 0; use < call.inputs + call.outputs; ++use) {
      const uint32_t number = run.uses[call.first_use + use].value;
      const RecordedValue& value = run.values[number];
      if (value.name == 0 || !is_floating(run, number)) continue;
      const std::string_view title = run.string(value.name);
      if (title.starts_with(kGradientOf)) {
        results.gradients[{call.step, title}] = {number, i};
        double& largest = results.largest_gradient[call.step];
        largest = std::max(largest, rms_of(run, value));
      } else if (run.string(run.uses[call.first_use + use].place).starts_with(kWritten)) {
        results.parameters[{call.step, title}] = {number, i};
      }
    }
  }
  return results;
}

// Strings of arguments, alike but for numbers that differ by rounding.
bool same_scalars(std::string_view a, std::string_view b) {
  const std::string text_a(a), text_b(b);  // ended by a zero byte, for strtod
  const char *at_a = text_a.c_str(), *at_b = text_b.c_str();
  const auto is_number = [](const char* at) {
    return std::isdigit(static_cast<unsigned char>(*at)) ||
           (*at == '-' && std::isdigit(static_cast<unsigned char>(at[1])));
  };
  while (*at_a != 0 && *at_b != 0) {
    if (is_number(at_a) && is_number(at_b)) {
      char *end_a = nullptr, *end_b = nullptr;
      const double one = std::strtod(at_a, &end_a), other = std::strtod(at_b, &end_b);
      if (std::abs(one - other) > kSameScalar * std::max(std::abs(one), std::abs(other))) return false;
      at_a = end_a, at_b = end_b;
    } else if (*at_a++ != *at_b++) {
      return false;
    }
  }
  return *at_a == *at_b;
}

double limit_of_run(const Recording& run, double usual) {
  double unit = 0;
  for (const RecordedValue& value : run.values) {
    if (value.known && dtype_class(value.dtype) == DtypeClass::kFloating) {
      unit = std::max(unit, rounding_of(value.dtype).unit);
    }
  }
  return std::max(usual, kUnits * unit);
}

class ResultComparison {
 public:
  ResultComparison(const Recording& a, const Recording& b, const Divergence& judged, const Noise* noise)
      : a_(a),
        b_(b),
        judged_(judged),
        noise_(noise),
        limit_(std::max(limit_of_run(a, kUsual), limit_of_run(b, kUsual))) {}

  std::optional<EndDifference> find() {
    const EndResults of_a = end_results(a_), of_b = end_results(b_);
    for (const auto& [step, losses] : of_a.losses) {
      const auto others = of_b.losses.find(step);
      if (others == of_b.losses.end()) continue;
      for (size_t i = 0; i < std::min(losses.size(), others->second.size()); ++i) {
        if (!explained(losses[i], others->second[i], limit_)) look_at(losses[i], others->second[i], 1);
      }
    }
    look_at_gradients(of_a, of_b);
    for (const auto& [key, one] : of_a.parameters) {
      const auto other = of_b.parameters.find(key);
      // A step of an optimizer may make much of a gradient that is rounding alone: gradients were looked at.
      if (other != of_b.parameters.end() && !explained(one, other->second, kAny)) look_at(one, other->second, 1);
    }
    return first_;
  }

 private:
  void look_at_gradients(const EndResults& of_a, const EndResults& of_b) {
    for (const auto& [key, one] : of_a.gradients) {
      const auto largest = of_b.largest_gradient.find(key.first);
      if (largest == of_b.largest_gradient.end()) continue;  // not recorded there
      const auto other = of_b.gradients.find(key);
      const double least = kSmallGradient * std::max(of_a.largest_gradient.at(key.first), largest->second);
      const double rms = rms_of(a_, a_.values[one.value]);
      if (other == of_b.gradients.end()) {
        if (rms > least) add({one.value, kNoCall, one.call, kNoCall, 1, limit_});
        continue;
      }
      const double size = std::max(rms, rms_of(b_, b_.values[other->second.value]));
      look_at(one, other->second, least > 0 ? std::min(1.0, size / least) : 1);
    }
  }

  // One pair of calls made both, with the same numbers, of inputs that differ by no more than `most`.
  bool explained(const Seen& one, const Seen& other, double most) const {
    const uint32_t row = judged_.row_of_a[one.call];
    if (row == kNoRow || row != judged_.row_of_b[other.call]) return false;
    const ComparedCalls& calls = judged_.rows[row];
    const bool same = calls.group != kNoCall ||
                      same_scalars(a_.string(a_.calls[one.call].scalars), b_.string(b_.calls[other.call].scalars));
    return same && calls.input_difference <= most && calls.output_difference <= calls.limit;
  }

  void look_at(const Seen& one, const Seen& other, double weight) {
    const ValueDifference difference = difference_of(a_, one.value, b_, other.value);
    if (difference.kind == ValueDifference::Kind::kUnknown || difference.kind == ValueDifference::Kind::kSame) return;
    double limit = limit_;
    if (noise_ != nullptr && std::isfinite(noise_->of_value[one.value])) {
      limit = std::max(limit, kNoiseFactor * noise_->of_value[one.value]);
    }
    if (difference.kind == ValueDifference::Kind::kNumbers && difference.relative * weight <= limit) return;
    add({one.value, other.value, one.call, other.call, difference.relative, limit});
  }

  void add(const EndDifference& difference) {
    if (!first_ || difference.call_a < first_->call_a) first_ = difference;
  }

  const Recording &a_, &b_;
  const Divergence& judged_;
  const Noise* const noise_;
  const double limit_;
  std::optional<EndDifference> first_;
};

// Every gradient that the engine gives to a leaf in `run` is made in the other run's step, too. The engine has an order
// of its own, gradients have no names there, and it takes some as they are where it copies others.
bool leaf_gradients_agree(const Recording& run, const EndResults& results, const Recording& other,
                          const EndResults& others, double limit) {
  for (const auto& [step, gradients] : results.leaf_gradients) {
    const auto made = others.made_backward.find(step);
    if (made == others.made_backward.end()) return false;
    double largest = 0;
    for (const uint32_t value : gradients) largest = std::max(largest, rms_of(run, run.values[value]));
    for (const uint32_t value : gradients) {
      const double least = kSmallGradient * largest;
      const double weight = least > 0 ? std::min(1.0, rms_of(run, run.values[value]) / least) : 1;
      const bool is_made = std::any_of(made->second.begin(), made->second.end(), [&](uint32_t one) {
        const ValueDifference difference = difference_of(run, value, other, one);
        return difference.kind == ValueDifference::Kind::kSame ||
               (difference.kind == ValueDifference::Kind::kNumbers && difference.relative * weight <= limit);
      });
      if (!is_made) return false;
    }
  }
  return true;
}

}  // namespace

bool all_results_agree(const Recording& a, const Recording& b) {
  const EndResults of_a = end_results(a), of_b = end_results(b);
  const double limit = std::max(limit_of_run(a, kEqual), limit_of_run(b, kEqual));
  const auto agree = [&](uint32_t one, uint32_t other, double weight) {
    const ValueDifference difference = difference_of(a, one, b, other);
    return difference.kind == ValueDifference::Kind::kSame ||
           (difference.kind == ValueDifference::Kind::kNumbers && difference.relative * weight <= limit);
  };
  const auto all_agree = [&](const auto& results, const auto& others) {
    return std::equal(
        results.begin(), results.end(), others.begin(), others.end(), [&](const auto& one, const auto& other) {
          if (one.first != other.first) return false;
          const double least =
              kSmallGradient * (of_a.largest_gradient.empty() ? 0 : of_a.largest_gradient.begin()->second);
          const double rms = rms_of(a, a.values[one.second.value]);
          const bool is_gradient = &results == &of_a.gradients && least > 0;
          return agree(one.second.value, other.second.value, is_gradient ? std::min(1.0, rms / least) : 1);
        });
  };
  if (of_a.losses.empty() || (of_a.gradients.empty() && of_a.leaf_gradients.empty())) return false;
  for (const auto& [step, losses] : of_a.losses) {
    const auto others = of_b.losses.find(step);
    const bool same = others != of_b.losses.end() &&
                      std::equal(losses.begin(), losses.end(), others->second.begin(), others->second.end(),
                                 [&](const Seen& one, const Seen& other) { return agree(one.value, other.value, 1); });
    if (!same) return false;
  }
  return leaf_gradients_agree(a, of_a, b, of_b, limit) && leaf_gradients_agree(b, of_b, a, of_a, limit) &&
         all_agree(of_a.gradients, of_b.gradients) && all_agree(of_a.parameters, of_b.parameters);
}

std::optional<EndDifference> differing_result(const Recording& a, const Recording& b, const Divergence& judged,
                                              const Noise* noise) {
  return ResultComparison(a, b, judged, noise).find();
}

}  // namespace op_tools
