#include "runs/optimizer_steps.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <unordered_map>

#include "compare/metrics/tolerance.h"
#include "hooks/module_path.h"
#include "hooks/op_traits.h"
#include "runs/call_keys.h"
#include "runs/expected_error.h"
#include "runs/tf32_products.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// Norms of differences are estimates: right within a factor of 2.
constexpr double kEstimate = 4;
// Sums and quotients in another order, and the forms' own ways to write a formula: the factors of a step are numbers in
// one form and tensors in another.
constexpr double kStepUnits = 256, kStepGrowth = 16;
// An update whose elements have other signs.
constexpr double kOtherSigns = 2;

bool is_parameter(const Recording& run, const RecordedUse& use) {
  const RecordedValue& value = run.values[use.value];
  return value.name != 0 && run.string(use.place).starts_with(kWrittenPlace) &&
         !run.string(value.name).starts_with(kGradientName) && dtype_class(value.dtype) == DtypeClass::kFloating;
}

bool is_on_lists(std::string_view base) {
  return is_foreach(base) || has_trait(base, OpTrait::kStepsParameters);
}

double unit_of(const Recording& run, uint32_t value) {
  return rounding_of(run.values[value].dtype).unit;
}

// The effect of a run's step on its parameters.
class StepOfRun {
 public:
  // A tensor that is written in place: a parameter, or the optimizer's state.
  struct Written {
    uint32_t before = kNoCall, after = kNoCall;
  };
  struct Parameter {
    Written written;
    std::vector<uint32_t> inputs;  // of its shape: the gradient, states
    std::vector<uint32_t> states;  // of its shape, after the step
    double divisor_spread = 1;
    bool jumps = false;
  };
  // By name, and the how-manyth of that name: modules of two roots may have the same.
  using Parameters = std::map<std::pair<std::string_view, int>, Parameter>;

  StepOfRun(const Recording& run, const CallNumbers& calls) : run_(run) {
    for (const uint32_t call : calls) follow(call);
  }

  Parameters parameters() const {
    Parameters all;
    for (const Written& chain : chains_) {
      const RecordedValue& value = run_.values[chain.after];
      if (value.name == 0 || run_.string(value.name).starts_with(kGradientName)) continue;
      int number = 0;
      while (all.contains({run_.string(value.name), number})) ++number;
      all.emplace(std::pair(run_.string(value.name), number), what_goes_into(chain));
    }
    return all;
  }

 private:
  struct Maker {
    uint32_t call = kNoCall;
    int64_t item = -1;
  };

  void follow(uint32_t number) {
    const RecordedCall& call = run_.calls[number];
    const bool on_lists = is_on_lists(base_name(run_.string(call.op)));
    const auto inputs = run_.inputs(call);
    for (const RecordedUse& use : run_.outputs(call)) {
      const auto is_it = [&](const RecordedUse& input) { return input.value == use.value; };
      if (std::any_of(inputs.begin(), inputs.end(), is_it)) continue;  // a view (detach): the call made no new value
      const std::string_view place = run_.string(use.place);
      makers_.emplace(use.value, Maker{number, on_lists ? list_item(place) : -1});
      if (!place.starts_with(kWrittenPlace)) continue;
      const auto written = std::find_if(inputs.begin(), inputs.end(), [&](const RecordedUse& input) {
        return run_.string(input.place) == place.substr(kWrittenPlace.size());
      });
      if (written == inputs.end() || written->value == use.value) continue;
      const auto [chain, is_new] = chain_of_.emplace(written->value, chains_.size());
      if (is_new) chains_.push_back({written->value, use.value});
      chains_[chain->second].after = use.value;
      chain_of_.emplace(use.value, chain->second);
    }
  }

  // State that is made in its first step, or was there before. A result of a call of this step is no state.
  bool is_state(const Written& chain) const {
    const auto maker = makers_.find(chain.before);
    if (maker == makers_.end()) return true;
    const RecordedCall& call = run_.calls[maker->second.call];
    return call.inputs == 0 || has_trait(base_name(run_.string(call.op)), OpTrait::kLikeFactory);
  }

  Parameter what_goes_into(const Written& written) const {
    Parameter parameter;
    parameter.written = written;
    const ListNumber shape = run_.values[written.after].shape;
    const auto like_it = [&](uint32_t value) {
      return run_.values[value].shape == shape && dtype_class(run_.values[value].dtype) == DtypeClass::kFloating;
    };
    std::set<uint32_t> seen{written.after}, chains;
    std::vector<uint32_t> open{written.after};
    while (!open.empty()) {
      const uint32_t value = open.back();
      open.pop_back();
      const auto chain = chain_of_.find(value);
      if (chain != chain_of_.end() && chains.insert(chain->second).second) {
        const Written& other = chains_[chain->second];
        if (other.after != written.after && like_it(other.after) && is_state(other)) {
          parameter.states.push_back(other.after);
        }
      }
      const auto maker = makers_.find(value);
      if (maker == makers_.end()) {
        if (value != written.before && like_it(value)) parameter.inputs.push_back(value);
        continue;
      }
      const RecordedCall& call = run_.calls[maker->second.call];
      const std::string_view base = base_name(run_.string(call.op));
      parameter.jumps = parameter.jumps || has_trait(base, OpTrait::kJumps);
      const RecordedValue* divisor = nullptr;
      for (const RecordedUse& use : run_.inputs(call)) {
        const int64_t item = maker->second.item < 0 ? -1 : list_item(run_.string(use.place));
        if (item >= 0 && item != maker->second.item) continue;
        if (like_it(use.value)) divisor = &run_.values[use.value];
        if (seen.insert(use.value).second) open.push_back(use.value);
      }
      const bool divides = has_trait(base, OpTrait::kDivides) && !has_trait(base, OpTrait::kStepsParameters);
      if (divides && divisor) parameter.divisor_spread = std::max(parameter.divisor_spread, spread_of(run_, *divisor));
    }
    return parameter;
  }

  const Recording& run_;
  std::unordered_map<uint32_t, Maker> makers_;  // by value
  std::vector<Written> chains_;
  std::unordered_map<uint32_t, size_t> chain_of_;  // by value: in chains_
};

using ParameterPair = std::pair<const StepOfRun::Parameter*, const StepOfRun::Parameter*>;  // nullptr: in a single run

// By name; where roots have other names (a model in a wrapper, or of another class) by their values before the step.
std::vector<ParameterPair> parameter_pairs(const Recording& run_a, const StepOfRun::Parameters& a,
                                           const Recording& run_b, const StepOfRun::Parameters& b) {
  std::vector<ParameterPair> pairs;
  std::vector<const StepOfRun::Parameter*> left_a, left_b;
  for (const auto& [name, parameter] : a) {
    const auto entry = b.find(name);
    if (entry == b.end()) {
      left_a.push_back(&parameter);
    } else {
      pairs.emplace_back(&parameter, &entry->second);
    }
  }
  for (const auto& [name, other] : b) {
    if (!a.contains(name)) left_b.push_back(&other);
  }
  const auto in_order = [](const auto* parameter, const auto* other) {
    return parameter->written.after < other->written.after;
  };
  std::sort(left_a.begin(), left_a.end(), in_order);
  std::sort(left_b.begin(), left_b.end(), in_order);
  for (const auto* const parameter : left_a) {
    const auto same = std::find_if(left_b.begin(), left_b.end(), [&](const auto* other) {
      const ValueDifference difference = difference_of(run_a, parameter->written.before, run_b, other->written.before);
      return difference.kind != ValueDifference::Kind::kUnknown && difference.relative <= kSameResult;
    });
    pairs.emplace_back(parameter, same == left_b.end() ? nullptr : *same);
    if (same != left_b.end()) left_b.erase(same);
  }
  for (const auto* const other : left_b) pairs.emplace_back(nullptr, other);
  return pairs;
}

double norm_of(const Recording& run, uint32_t value) {
  return rms_of(run, run.values[value]) * std::sqrt(static_cast<double>(numel_of(run, run.values[value])));
}

// By how much the two new values may be apart, as a norm, if the values before are apart by `before` and the update's
// elements by a share of their size.
double limit_of_step(const Recording& run_a, const StepOfRun::Written& a, const Recording& run_b,
                     const StepOfRun::Written& b, double before, double of_update) {
  const double update = std::max(difference_of(run_a, a.before, run_a, a.after).norm,
                                 difference_of(run_b, b.before, run_b, b.after).norm);
  const double unit = std::max(unit_of(run_a, a.after), unit_of(run_b, b.after));
  return kEstimate * (before + of_update * update + unit * norm_of(run_a, a.after));
}

// The record of an optimizer's call about a parameter (op_tools/_torch/module_calls.py).
struct RecordedMove {
  uint32_t gradient = kNoCall, before = kNoCall, moved = kNoCall, after = kNoCall;
};

// By parameter. Empty: the recording has no moves.
std::map<std::string_view, RecordedMove> recorded_moves(const Recording& run, const RecordedCall& call) {
  constexpr std::string_view kGradient = "kwargs.grad.", kBefore = "result.before.", kMoved = "result.moved.",
                             kAfter = "result.";
  std::map<std::string_view, RecordedMove> moves;
  bool has_moves = false;
  const auto note = [&](const RecordedUse& use, std::string_view prefix, uint32_t RecordedMove::*field) {
    const std::string_view place = run.string(use.place);
    if (!place.starts_with(prefix)) return false;
    moves[place.substr(prefix.size())].*field = use.value;
    return true;
  };
  for (const RecordedUse& use : run.inputs(call)) note(use, kGradient, &RecordedMove::gradient);
  for (const RecordedUse& use : run.outputs(call)) {
    if (note(use, kMoved, &RecordedMove::moved)) {
      has_moves = true;
    } else if (!note(use, kBefore, &RecordedMove::before)) {
      note(use, kAfter, &RecordedMove::after);
    }
  }
  if (!has_moves) moves.clear();
  return moves;
}

// The values of parameters after the step before this call, by name. A parameter without such a step has none.
std::map<std::string_view, uint32_t> after_last_steps(const Recording& run, uint32_t call,
                                                      const std::map<std::string_view, RecordedMove>& parameters) {
  constexpr std::string_view kAfter = "result.";
  std::map<std::string_view, uint32_t> values;
  while (call-- > 0 && values.size() < parameters.size()) {  // another optimizer may have had the last step
    if (!is_optimizer_call(run.string(run.calls[call].op))) continue;
    for (const RecordedUse& use : run.outputs(run.calls[call])) {
      const std::string_view place = run.string(use.place);
      if (!place.starts_with(kAfter)) continue;
      const std::string_view name = place.substr(kAfter.size());
      if (parameters.contains(name)) values.emplace(name, use.value);
    }
  }
  return values;
}

// By how much the two values before a step may be apart, as a norm: as much as after the last step (`after`).
double most_before(const Recording& run_a, uint32_t before_a, uint32_t after_a, const Recording& run_b,
                   uint32_t before_b, uint32_t after_b) {
  const double apart = difference_of(run_a, before_a, run_b, before_b).norm;
  if (after_a == kNoCall || after_b == kNoCall) return apart;
  const double unit = std::max(unit_of(run_a, before_a), unit_of(run_b, before_b));
  return std::min(apart, kEstimate * difference_of(run_a, after_a, run_b, after_b).norm +
                             kStepUnits * unit * norm_of(run_a, before_a));
}

double as_share(double norm, const Recording& run_a, uint32_t a, const Recording& run_b, uint32_t b) {
  const double largest = std::max(norm_of(run_a, a), norm_of(run_b, b));
  return largest > 0 ? norm / largest : 0;
}

}  // namespace

double coarsest_unit(const Recording& run) {
  double unit = 0;
  for (const RecordedValue& value : run.values) {
    if (value.known && dtype_class(value.dtype) == DtypeClass::kFloating) {
      unit = std::max(unit, rounding_of(value.dtype).unit);
    }
  }
  // Gradients of networks whose convolutions were in TF32 were up to 0.03 apart after a step of Adam.
  constexpr double kLeft = 0.5;
  if (Tf32Products(run).rounds_any()) unit = std::max(unit, kLeft * rounding_of(c10::ScalarType::Half).unit);
  return unit;
}

double small_gradient(const Recording& run) {
  constexpr double kSmall = 0.01, kRoundingSteps = 16;
  return std::max(kSmall, kRoundingSteps * coarsest_unit(run));
}

int64_t list_item(std::string_view place) {
  const size_t bracket = place.rfind('[');
  if (bracket == std::string_view::npos || !place.ends_with(']') || place.substr(0, bracket).ends_with("args")) {
    return -1;
  }
  int64_t item = -1;
  const char* const end = place.data() + place.size() - 1;
  const auto [stopped, error] = std::from_chars(place.data() + bracket + 1, end, item);
  return error == std::errc() && stopped == end ? item : -1;
}

std::map<std::pair<int64_t, uint32_t>, std::vector<OptimizerStep>> optimizer_steps(const Recording& run) {
  std::map<std::pair<int64_t, uint32_t>, std::vector<OptimizerStep>> steps;
  std::map<uint32_t, CallNumbers> open;  // by thread: calls of a line so far
  const auto close = [&](CallNumbers* calls) {
    OptimizerStep step{std::move(*calls)};
    calls->clear();
    bool writes = false;
    for (const uint32_t number : step.calls) {
      const RecordedCall& call = run.calls[number];
      const auto outputs = run.outputs(call);
      if (std::none_of(outputs.begin(), outputs.end(), [&](const auto& use) { return is_parameter(run, use); }))
        continue;
      const std::string_view base = base_name(run.string(call.op));
      writes = true;
      step.lists = step.lists || is_foreach(base);
      step.fused = step.fused || has_trait(base, OpTrait::kStepsParameters);
    }
    if (!writes) return;
    const RecordedCall& first = run.calls[step.calls.front()];
    steps[{first.step, first.thread}].push_back(std::move(step));
  };
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    CallNumbers& calls = open[call.thread];
    const bool may_belong = call.phase == Phase::kForward && !call.grad_enabled;
    const bool goes_on =
        may_belong &&
        (calls.empty() || (run.calls[calls.back()].line == call.line && run.calls[calls.back()].step == call.step));
    if (!goes_on && !calls.empty()) close(&calls);
    if (may_belong) calls.push_back(i);
  }
  for (auto& [thread, calls] : open) {
    if (!calls.empty()) close(&calls);
  }
  return steps;
}

double most_of_step(const Recording& run_a, uint32_t before_a, uint32_t after_a, const Recording& run_b,
                    uint32_t before_b, uint32_t after_b) {
  const double before = difference_of(run_a, before_a, run_b, before_b).norm;
  return as_share(limit_of_step(run_a, {before_a, after_a}, run_b, {before_b, after_b}, before, kOtherSigns), run_a,
                  after_a, run_b, after_b);
}

ComparedSteps compare_steps(const Recording& run_a, const CallNumbers& a, const Recording& run_b,
                            const CallNumbers& b) {
  const StepOfRun step_a(run_a, a), step_b(run_b, b);
  const StepOfRun::Parameters of_a = step_a.parameters(), of_b = step_b.parameters();
  ComparedSteps steps;
  for (const auto& [of_one, of_other] : parameter_pairs(run_a, of_a, run_b, of_b)) {
    if (of_one == nullptr || of_other == nullptr) {
      steps.results.push_back({of_one ? of_one->written.after : kNoCall, of_other ? of_other->written.after : kNoCall});
      continue;
    }
    const StepOfRun::Parameter &parameter = *of_one, &other = *of_other;
    steps.inputs.emplace_back(parameter.written.before, other.written.before);
    double difference = 0;
    for (const auto& pair : pair_values(run_a, parameter.inputs, run_b, other.inputs)) {
      difference = std::max(difference, difference_of(run_a, pair.first, run_b, pair.second).relative);
      steps.inputs.push_back(pair);
    }
    const double unit = std::max(unit_of(run_a, parameter.written.after), unit_of(run_b, other.written.after));
    const double spread = std::max(parameter.divisor_spread, other.divisor_spread);
    // Signs (of Lion, of Rprop) of numbers next to zero are any, too.
    const bool jumps = (parameter.jumps || other.jumps) && difference > 0;
    const double own = kStepUnits * unit;
    const double of_update = jumps ? kOtherSigns : std::min(kOtherSigns, kStepGrowth * difference * spread + own);
    const double before = difference_of(run_a, parameter.written.before, run_b, other.written.before).norm;
    const auto share = [&](double norm) {
      return as_share(norm, run_a, parameter.written.after, run_b, other.written.after);
    };
    steps.results.push_back({parameter.written.after, other.written.after,
                             share(limit_of_step(run_a, parameter.written, run_b, other.written, before, of_update)),
                             share(limit_of_step(run_a, parameter.written, run_b, other.written, 0, own))});
    for (const auto& [state_a, state_b] : pair_values(run_a, parameter.states, run_b, other.states)) {
      steps.results.push_back({state_a, state_b, kStepGrowth * difference + own, own});
    }
  }
  return steps;
}

std::optional<ComparedSteps> compare_module_steps(const Recording& run_a, uint32_t a, const Recording& run_b,
                                                  uint32_t b) {
  if (!is_optimizer_call(run_a.string(run_a.calls[a].op))) return std::nullopt;
  const auto of_a = recorded_moves(run_a, run_a.calls[a]), of_b = recorded_moves(run_b, run_b.calls[b]);
  if (of_a.empty() || of_b.empty()) return std::nullopt;
  ComparedSteps steps;
  const auto last_a = after_last_steps(run_a, a, of_a), last_b = after_last_steps(run_b, b, of_b);
  const auto value_or_none = [](const std::map<std::string_view, uint32_t>& values, std::string_view name) {
    const auto value = values.find(name);
    return value == values.end() ? kNoCall : value->second;
  };
  const auto compare = [&](const RecordedMove& move, const RecordedMove& other, std::string_view name_a,
                           std::string_view name_b) {
    double difference = 0;
    if (move.gradient != kNoCall && other.gradient != kNoCall) {
      steps.inputs.emplace_back(move.gradient, other.gradient);
      difference = difference_of(run_a, move.gradient, run_b, other.gradient).relative;
    }
    if (move.after == kNoCall || other.after == kNoCall) {
      steps.results.push_back({move.after, other.after});
      return;
    }
    const double unit = std::max(unit_of(run_a, move.after), unit_of(run_b, other.after)), own = kStepUnits * unit;
    if (move.moved == kNoCall || other.moved == kNoCall) {  // without a gradient, or with a sparse gradient
      steps.results.push_back({move.after, other.after, kStepGrowth * difference + own, own});
      return;
    }
    const StepOfRun::Written written_a{move.before, move.after}, written_b{other.before, other.after};
    const double of_update = std::min(kOtherSigns, kStepGrowth * difference + own);
    const double moved = std::max(norm_of(run_a, move.moved), norm_of(run_b, other.moved));
    const bool agree_along_gradients = difference_of(run_a, move.moved, run_b, other.moved).norm <=
                                       kEstimate * (of_update * moved + unit * norm_of(run_a, move.after));
    const double before = most_before(run_a, move.before, value_or_none(last_a, name_a), run_b, other.before,
                                      value_or_none(last_b, name_b));
    const auto limit = [&](double before_step, double update) {
      return as_share(limit_of_step(run_a, written_a, run_b, written_b, before_step, update), run_a, move.after, run_b,
                      other.after);
    };
    if (before < difference_of(run_a, move.before, run_b, other.before).norm) {  // something else wrote it since
      steps.results.push_back(
          {move.before, other.before, as_share(before, run_a, move.before, run_b, other.before), own});
    }
    steps.results.push_back({move.after, other.after,
                             limit(before, agree_along_gradients && difference > 0 ? kOtherSigns : of_update),
                             limit(0, own)});
  };
  if (of_a.size() == of_b.size()) {  // roots may have other names
    for (auto move = of_a.begin(), other = of_b.begin(); move != of_a.end(); ++move, ++other) {
      compare(move->second, other->second, move->first, other->first);
    }
    return steps;
  }
  for (const auto& [name, move] : of_a) {
    const auto other = of_b.find(name);
    compare(move, other == of_b.end() ? RecordedMove() : other->second, name, name);
  }
  for (const auto& [name, other] : of_b) {
    if (!of_a.contains(name)) compare(RecordedMove(), other, name, name);
  }
  return steps;
}

ReadBySteps farthest_gradient(const Recording& run_a, const CallNumbers& a, const Recording& run_b,
                              const CallNumbers& b, double small) {
  const StepOfRun step_a(run_a, a), step_b(run_b, b);
  const StepOfRun::Parameters of_a = step_a.parameters(), of_b = step_b.parameters();
  ValuePairs pairs;
  double largest = 0;
  for (const auto& [parameter, other] : parameter_pairs(run_a, of_a, run_b, of_b)) {
    if (parameter == nullptr || other == nullptr) continue;
    for (const auto& pair : pair_values(run_a, parameter->inputs, run_b, other->inputs)) {
      largest = std::max(largest, rms_of(run_a, run_a.values[pair.first]));
      pairs.push_back(pair);
    }
  }
  ReadBySteps farthest;
  const double least = small * largest;
  for (const auto& [value_a, value_b] : pairs) {
    const ValueDifference difference = difference_of(run_a, value_a, run_b, value_b);
    if (difference.kind == ValueDifference::Kind::kUnknown) continue;
    const double size = std::max(rms_of(run_a, run_a.values[value_a]), rms_of(run_b, run_b.values[value_b]));
    const double share = difference.relative * (least > 0 ? std::min(1.0, size / least) : 1);
    if (share > farthest.difference) farthest = {value_a, value_b, share};
  }
  return farthest;
}

}  // namespace op_tools
