#include "runs/end_results.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compare/metrics/tolerance.h"
#include "hooks/module_path.h"
#include "runs/call_facts.h"
#include "runs/call_keys.h"
#include "runs/optimizer_steps.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// The effect of rounding on a loss, a gradient or a parameter in the steps of a recording; measured with runs that
// round otherwise (tests/proofs/no_false_all_clear.py).
constexpr double kUsual = 1e-3;
constexpr double kUnits = 64;
// Steps of optimizers for gradients that are rounding alone move later losses and gradients no farther apart; nor are
// gradients that are all rounding (of a loss that nothing changes).
constexpr double kMostMoved = 0.02;
// Behind such a step a running mean is as far apart as the inputs that it is the mean of, but no farther than that.
constexpr double kMostOfInputs = 0.25, kOfInputs = 2;
// Nearer than that nothing is left to be explained.
constexpr double kEqual = 1e-4;
// Numbers among the arguments that differ by less come from results that were read.
constexpr double kSameScalar = 1e-4;
constexpr double kAny = std::numeric_limits<double>::infinity();

struct EndResults {
  std::map<int64_t, std::vector<SeenValue>> losses;                                 // by step
  std::map<std::pair<int64_t, std::string_view>, SeenValue> gradients, parameters;  // by step and name
  // By step: values that the engine gives to leaves; all that backward calls make.
  std::map<int64_t, std::vector<SeenValue>> leaf_gradients;
  std::map<int64_t, std::vector<uint32_t>> made_backward;
  std::map<int64_t, double> largest_gradient;             // by step: root of the mean square
  std::set<std::pair<int64_t, std::string_view>> unread;  // parameters whose last value of a step is not known
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
    const auto forward_call = forward.find(call.forward_id);
    if (call.forward_id == 0 || forward_call == forward.end()) continue;
    for (const RecordedUse& use : run.outputs(run.calls[forward_call->second])) {
      if (numel_of(run, run.values[use.value]) != 1 || !is_floating(run, use.value)) continue;
      results->losses[call.step].push_back({use.value, forward_call->second});
      break;
    }
  }
}

EndResults end_results(const Recording& run) {
  constexpr std::string_view kGradientPlace = "kwargs.grad.";
  EndResults results;
  add_losses(run, &results);
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    if (call.phase == Phase::kBackward) {
      for (const RecordedUse& use : run.outputs(call)) results.made_backward[call.step].push_back(use.value);
    }
    if (call.phase == Phase::kBackward && call.outputs == 1 && plain_name(run.string(call.op)) == "detach") {
      results.leaf_gradients[call.step].push_back({run.outputs(call)[0].value, i});
    }
    const bool is_optimizer = is_optimizer_call(run.string(call.op));
    for (uint32_t use = 0; use < call.inputs + call.outputs; ++use) {
      const uint32_t number = run.uses[call.first_use + use].value;
      const RecordedValue& value = run.values[number];
      const std::string_view place = run.string(run.uses[call.first_use + use].place);
      const bool is_read_by_step = is_optimizer && place.starts_with(kGradientPlace);
      if (value.name == 0 && !is_read_by_step) continue;
      const std::string_view title = run.string(value.name);
      if (place.starts_with(kWrittenPlace) && !value.known) results.unread.insert({call.step, title});
      if (!is_floating(run, number)) continue;
      if (is_read_by_step || title.starts_with(kGradientName)) {
        results.gradients[{call.step, is_read_by_step ? place : title}] = {number, i};
        double& largest = results.largest_gradient[call.step];
        largest = std::max(largest, rms_of(run, value));
      } else if (place.starts_with(kWrittenPlace)) {
        results.parameters[{call.step, title}] = {number, i};
        results.unread.erase({call.step, title});
      }
    }
  }
  return results;
}

// Memory that calls without gradients write in a step.
struct WrittenMemory {
  uint32_t before = kNoCall;  // its value before the step
  SeenValue last;
  bool is_parameter = false;  // calls before a backward pass read it, with gradients
};

// By step. The program's models may have no name for it: a call of the recording made it, or it is of no module.
std::map<int64_t, std::vector<WrittenMemory>> written_memory(const Recording& run) {
  std::map<int64_t, std::vector<WrittenMemory>> written;
  std::map<std::pair<int64_t, uint32_t>, size_t> known;  // by step and last value
  std::vector<bool> is_parameter(run.values.size(), false);
  std::vector<uint32_t> read;  // since the last backward pass
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    const RecordedCall& call = run.calls[i];
    const auto inputs = run.inputs(call), outputs = run.outputs(call);
    if (call.phase == Phase::kBackward) {
      for (const uint32_t value : read) is_parameter[value] = true;
      read.clear();
      continue;
    }
    if (call.grad_enabled) {
      for (const RecordedUse& use : inputs) {
        // A call that gives the same value computes nothing of it: a new parameter is a `detach` of its memory.
        const auto is_it = [&](const RecordedUse& output) { return output.value == use.value; };
        if (is_floating(run, use.value) && std::none_of(outputs.begin(), outputs.end(), is_it)) {
          read.push_back(use.value);
        }
      }
      continue;
    }
    for (const RecordedUse& use : outputs) {
      const std::string_view place = run.string(use.place);
      if (!place.starts_with(kWrittenPlace)) continue;
      const auto before = std::find_if(inputs.begin(), inputs.end(), [&](const RecordedUse& input) {
        return run.string(input.place) == place.substr(kWrittenPlace.size());
      });
      if (before == inputs.end() || before->value == use.value) continue;
      is_parameter[use.value] = is_parameter[use.value] || is_parameter[before->value];
      std::vector<WrittenMemory>& of_step = written[call.step];
      const auto [entry, is_new] = known.try_emplace({call.step, before->value}, of_step.size());
      const size_t number = entry->second;
      if (is_new) of_step.push_back({before->value, {}, is_parameter[before->value]});
      of_step[number].last = {use.value, i};
      known.insert_or_assign({call.step, use.value}, number);
    }
  }
  return written;
}

// All operators that the program ran are in the recording, and those that write say so: it is no dump of another tool,
// which says nothing of writes, nor one of modules alone.
bool shows_writes(const Recording& run) {
  const Value* const format = find_key(run.header, "format");
  const Value* const modules_only = find_key(run.header, "modules_only");
  if (!format || !format->is<int64_t>() || !modules_only || modules_only->get_if<bool>() == nullptr ||
      *modules_only->get_if<bool>())
    return false;
  const Value* const account = find_key(run.header, kAccount);
  if (!account) return true;
  return std::ranges::none_of(std::array{"threads", "native_calls", "graphs", "compiled"}, [&](const char* unseen) {
    const Value* const count = find_key(*account, unseen);
    const auto* const number = count ? count->get_if<int64_t>() : nullptr;
    return number && *number > 0;
  });
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
      const double number = std::strtod(at_a, &end_a), other = std::strtod(at_b, &end_b);
      if (std::abs(number - other) > kSameScalar * std::max(std::abs(number), std::abs(other))) return false;
      at_a = end_a, at_b = end_b;
    } else if (*at_a++ != *at_b++) {
      return false;
    }
  }
  return *at_a == *at_b;
}

double limit_of_run(const Recording& run, double usual) {
  return std::max(usual, kUnits * coarsest_unit(run));
}

// The results of two runs, and how near to each other they have to be.
class ResultComparison {
 public:
  ResultComparison(const Recording& a, const Recording& b, const Divergence& judged, const Noise* noise, double limit)
      : a_(a),
        b_(b),
        judged_(judged),
        noise_(noise),
        of_a_(end_results(a)),
        of_b_(end_results(b)),
        limit_(std::max(limit_of_run(a, limit), limit_of_run(b, limit))),
        small_(std::max(small_gradient(a), small_gradient(b))) {
    look_at_steps();
    for (const auto& [key, seen] : of_a_.parameters) {
      const auto other = of_b_.parameters.find(key);
      if (other == of_b_.parameters.end() || !step_explains(seen, other->second)) continue;
      const ValueDifference difference = difference_of(a_, seen.value, b_, other->second.value);
      if (difference.kind == ValueDifference::Kind::kNumbers && difference.relative > limit_) {
        moved_ = std::min(moved_, seen.call);
      }
    }
    // Recordings of modules have an optimizer's parameters as its results.
    for (const ComparedCalls& calls : judged_.rows) {
      const bool is_moved = calls.verdict == CallVerdict::kAgrees && calls.output_difference > limit_;
      if (is_moved && is_optimizer_call(a_.string(a_.calls[calls.a].op))) moved_ = std::min(moved_, calls.a);
    }
  }

  std::optional<EndDifference> find() {
    for (const auto& [step, losses] : of_a_.losses) {
      const auto others = of_b_.losses.find(step);
      if (others == of_b_.losses.end()) continue;
      for (size_t i = 0; i < std::min(losses.size(), others->second.size()); ++i) {
        if (!explained(losses[i], others->second[i], limit_at(losses[i].call))) {
          look_at(losses[i], others->second[i], 1);
        }
      }
    }
    std::set<int64_t> renamed;  // steps with gradients of names that A has not
    for (const auto& [key, other] : of_b_.gradients) {
      if (!of_a_.gradients.contains(key)) renamed.insert(key.first);
    }
    for (const auto& [key, seen] : of_a_.gradients) {
      const auto other = of_b_.gradients.find(key);
      if (other != of_b_.gradients.end()) {
        look_at(seen, other->second, weight_of(key.first, seen, other->second));
      } else if (of_b_.largest_gradient.contains(key.first) && !renamed.contains(key.first) &&
                 rms_of(a_, a_.values[seen.value]) > small_ * of_a_.largest_gradient.at(key.first) &&
                 !is_made(a_, seen, b_, of_b_, key.first, 1, limit_at(seen.call))) {
        add_missing(a_, seen);
      }
    }
    for (const Step& step : steps_) {
      if (gradients_agree(step)) continue;
      const ReadBySteps& read = step.read;
      add({read.value_a, read.value_b, reader_of(read.value_a, step), kNoCall, read.difference, limit_of(step)});
    }
    look_at_parameters();
    if (shows_writes(a_) && shows_writes(b_)) look_at_missing_parameters();
    return first_;
  }

  bool all_agree() const {
    if (of_a_.losses.empty() || (of_a_.gradients.empty() && of_a_.leaf_gradients.empty())) return false;
    const bool same_losses = std::equal(
        of_a_.losses.begin(), of_a_.losses.end(), of_b_.losses.begin(), of_b_.losses.end(),
        [&](const auto& entry, const auto& other) {
          return entry.first == other.first &&
                 std::equal(
                     entry.second.begin(), entry.second.end(), other.second.begin(), other.second.end(),
                     [&](const SeenValue& loss, const SeenValue& other_loss) { return agree(loss, other_loss, 1); });
        });
    const bool same_gradients =
        std::equal(of_a_.gradients.begin(), of_a_.gradients.end(), of_b_.gradients.begin(), of_b_.gradients.end(),
                   [&](const auto& entry, const auto& other) {
                     return entry.first == other.first &&
                            agree(entry.second, other.second, weight_of(entry.first.first, entry.second, other.second));
                   });
    const bool same_parameters =
        std::equal(of_a_.parameters.begin(), of_a_.parameters.end(), of_b_.parameters.begin(), of_b_.parameters.end(),
                   [&](const auto& entry, const auto& other) {
                     return entry.first == other.first &&
                            (agree(entry.second, other.second, 1) || step_explains(entry.second, other.second));
                   });
    const bool same_steps = std::all_of(steps_.begin(), steps_.end(),
                                        [&](const Step& step) { return step.read.difference <= limit_at(step.first); });
    return same_losses && same_gradients && same_steps && same_parameters &&
           leaf_gradients_agree(a_, of_a_, b_, of_b_) && leaf_gradients_agree(b_, of_b_, a_, of_a_);
  }

 private:
  // A step of an optimizer that both runs have.
  struct Step {
    uint32_t first = kNoCall, last = kNoCall;  // calls of A
    ReadBySteps read;
  };

  void look_at_steps() {
    const auto of_a = optimizer_steps(a_), of_b = optimizer_steps(b_);
    const double small = small_gradient(b_);
    for (const auto& [place, steps] : of_a) {
      const auto others = of_b.find(place);
      if (others == of_b.end() || others->second.size() != steps.size()) continue;
      for (size_t i = 0; i < steps.size(); ++i) {
        const CallNumbers& calls = steps[i].calls;
        steps_.push_back(
            {calls.front(), calls.back(), farthest_gradient(a_, calls, b_, others->second[i].calls, small)});
      }
    }
  }

  uint32_t reader_of(uint32_t value, const Step& step) const {
    for (uint32_t call = step.first; call < step.last; ++call) {
      const auto inputs = a_.inputs(a_.calls[call]);
      if (std::any_of(inputs.begin(), inputs.end(), [&](const auto& use) { return use.value == value; })) return call;
    }
    return step.last;
  }

  // The step of an optimizer may make much of a gradient that is rounding alone. Others agree.
  bool step_explains(const SeenValue& seen, const SeenValue& other) const {
    const auto step = std::find_if(steps_.begin(), steps_.end(),
                                   [&](const Step& step) { return step.first <= seen.call && seen.call <= step.last; });
    if (!explained(seen, other, kAny)) return false;
    return step == steps_.end() ? inputs_explain(seen, other) : gradients_agree(*step);
  }

  // A buffer that a call outside of a step writes (the running mean of a normalisation, whose results show little of
  // its inputs) differs no more than a loss where its inputs do: beside the tensors that it is the mean of, for a mean
  // may be all rounding. Numbers of seen sign (a running variance) do not cancel.
  bool inputs_explain(const SeenValue& seen, const SeenValue& other) const {
    if (explained(seen, other, limit_at(seen.call))) return true;
    const RecordedValue& buffer = a_.values[seen.value];
    const double larger = std::max(rms_of(a_, buffer), rms_of(b_, b_.values[other.value]));
    double beside = larger;
    if (buffer.min <= 0 && buffer.max >= 0) {
      for (const RecordedUse& use : a_.inputs(a_.calls[seen.call])) {
        const RecordedValue& input = a_.values[use.value];
        const bool is_averaged = is_floating(a_, use.value) && numel_of(a_, input) > numel_of(a_, buffer);
        if (is_averaged) beside = std::max(beside, rms_of(a_, input));
      }
    }
    const double weight = beside > 0 ? larger / beside : 1;
    double limit = limit_at(seen.call);
    // Behind a parameter that a step moved for a gradient of rounding alone (the bias before a normalisation).
    if (moved_ < seen.call && explained(seen, other, kMostOfInputs)) {
      limit = std::max(limit, kOfInputs * judged_.rows[judged_.row_of_a[seen.call]].input_difference);
    }
    return is_within(difference_of(a_, seen.value, b_, other.value), weight, limit);
  }

  // Gradients that a pair of calls made, within its limit, may be all rounding: of a loss that nothing changes.
  double limit_of(const Step& step) const {
    const double limit = limit_at(step.first);
    if (step.read.value_a == kNoCall) return limit;
    const RecordedValue &a = a_.values[step.read.value_a], &b = b_.values[step.read.value_b];
    if (a.origin != Origin::kCall || b.origin != Origin::kCall) return limit;
    const bool is_explained = explained({step.read.value_a, a.producer}, {step.read.value_b, b.producer}, kAny);
    return is_explained ? std::max(limit, kMostMoved) : limit;
  }
  bool gradients_agree(const Step& step) const { return step.read.difference <= limit_of(step); }

  void look_at_parameters() {
    std::map<int64_t, std::vector<SeenValue>> left_a, left_b;  // by step: of names that the other run has not
    std::set<int64_t> steps_a, steps_b;
    for (const auto& [key, seen] : of_a_.parameters) {
      steps_a.insert(key.first);
      const auto other = of_b_.parameters.find(key);
      if (other == of_b_.parameters.end()) {
        left_a[key.first].push_back(seen);
      } else if (!step_explains(seen, other->second)) {
        look_at(seen, other->second, 1);
      }
    }
    for (const auto& [key, other] : of_b_.parameters) {
      steps_b.insert(key.first);
      if (!of_a_.parameters.contains(key)) left_b[key.first].push_back(other);
    }
    // As many on both sides: the roots have other names, and calls were compared in their order.
    for (const auto& [step, seen] : left_a) {
      if (!steps_b.contains(step) || left_b[step].size() == seen.size()) continue;
      add_missing(a_, seen[0]);
    }
    for (const auto& [step, seen] : left_b) {
      if (!steps_a.contains(step) || seen.empty() || left_a[step].size() == seen.size()) continue;
      add_missing(b_, seen[0]);
    }
  }

  // Parameters that a run writes in a step and the other does not, whether they have names or not.
  void look_at_missing_parameters() {
    const auto of_a = written_memory(a_), of_b = written_memory(b_);
    for (const auto& [step, written] : of_a) look_at_missing(step, written, a_, of_b, b_);
    for (const auto& [step, written] : of_b) look_at_missing(step, written, b_, of_a, a_);
  }

  // First those that pairs of calls write, then those of the same shape: runs may write them in other calls.
  void look_at_missing(int64_t step, const std::vector<WrittenMemory>& written, const Recording& run,
                       const std::map<int64_t, std::vector<WrittenMemory>>& others, const Recording& other) {
    if (!other.complete && !other.calls.empty() && other.calls.back().step <= step) return;  // it ends in this step
    using Place = std::pair<uint32_t, std::vector<int64_t>>;                                 // row, shape
    const auto place_of = [&](const Recording& of_run, const WrittenMemory& memory) -> Place {
      const std::vector<uint32_t>& rows = &of_run == &a_ ? judged_.row_of_a : judged_.row_of_b;
      return {rows[memory.last.call], of_run.list(of_run.values[memory.last.value].shape).vec()};
    };
    std::map<Place, size_t> parameters;  // of the other run
    std::vector<uint32_t> further;       // values that it writes to other memory
    if (const auto entry = others.find(step); entry != others.end()) {
      for (const WrittenMemory& memory : entry->second) {
        if (memory.is_parameter) {
          ++parameters[place_of(other, memory)];
        } else {
          further.push_back(memory.last.value);
        }
      }
    }
    std::vector<std::pair<const WrittenMemory*, Place>> left;
    for (const WrittenMemory& memory : written) {
      if (!memory.is_parameter) continue;
      Place place = place_of(run, memory);
      if (size_t& in_row = parameters[place]; in_row > 0) {
        --in_row;
      } else {
        left.emplace_back(&memory, std::move(place));
      }
    }
    std::map<std::vector<int64_t>, size_t> of_shape;
    for (const auto& [place, count] : parameters) of_shape[place.second] += count;
    for (const auto& [memory, place] : left) {
      const bool is_changed = difference_of(run, memory->before, run, memory->last.value).relative > 0;
      if (!is_changed || place.first == kNoRow) continue;
      if (size_t& elsewhere = of_shape[place.second]; elsewhere > 0) {
        --elsewhere;
      } else if (!is_written(run, memory->last, other, &further)) {
        add_missing(run, memory->last);
      }
    }
  }

  // The other run writes this value, too. Takes it out of `values`.
  bool is_written(const Recording& run, const SeenValue& seen, const Recording& other,
                  std::vector<uint32_t>* values) const {
    const double limit = limit_at(&run == &a_ ? seen.call : row_call_of_b(seen.call));
    const auto same = std::find_if(values->begin(), values->end(), [&](uint32_t value) {
      return is_within(difference_of(run, seen.value, other, value), 1, limit);
    });
    if (same == values->end()) return false;
    values->erase(same);
    return true;
  }

  // The other run has no such result.
  void add_missing(const Recording& run, const SeenValue& seen) {
    if (&run == &a_) {
      add({seen.value, kNoCall, seen.call, kNoCall, 1, limit_});
    } else {
      add({kNoCall, seen.value, kNoCall, seen.call, 1, limit_});
    }
  }

  // Beside the largest gradient of its step a small gradient counts less.
  double weight_of(int64_t step, const SeenValue& seen, const SeenValue& other) const {
    double largest = 0;
    for (const EndResults* const results : {&of_a_, &of_b_}) {
      const auto entry = results->largest_gradient.find(step);
      if (entry != results->largest_gradient.end()) largest = std::max(largest, entry->second);
    }
    const double least = small_ * largest;
    const double size = std::max(rms_of(a_, a_.values[seen.value]), rms_of(b_, b_.values[other.value]));
    return least > 0 ? std::min(1.0, size / least) : 1;
  }

  // A backward call of the other run's step makes this gradient, where it may have no name: it is the leaf's as it is.
  static bool is_made(const Recording& run, const SeenValue& seen, const Recording& other, const EndResults& others,
                      int64_t step, double weight, double limit) {
    const auto calls = others.made_backward.find(step);
    if (calls == others.made_backward.end()) return false;
    return std::any_of(calls->second.begin(), calls->second.end(), [&](uint32_t call) {
      return is_within(difference_of(run, seen.value, other, call), weight, limit);
    });
  }

  // Every gradient that the engine gives to a leaf in `run` is made in the other run's step, too. The engine has an
  // order of its own, gradients have no names there, and it takes some as they are where it copies others.
  bool leaf_gradients_agree(const Recording& run, const EndResults& results, const Recording& other,
                            const EndResults& others) const {
    for (const auto& [step, gradients] : results.leaf_gradients) {
      double largest = 0;
      for (const SeenValue& seen : gradients) largest = std::max(largest, rms_of(run, run.values[seen.value]));
      for (const SeenValue& seen : gradients) {
        const double least = small_ * largest;
        const double weight = least > 0 ? std::min(1.0, rms_of(run, run.values[seen.value]) / least) : 1;
        const uint32_t call_a = &run == &a_ ? seen.call : row_call_of_b(seen.call);
        if (!is_made(run, seen, other, others, step, weight, limit_at(call_a))) return false;
      }
    }
    return true;
  }

  // A call of A that is about as late as this call of B.
  uint32_t row_call_of_b(uint32_t call_b) const {
    const uint32_t row = judged_.row_of_b[call_b];
    for (uint32_t i = row == kNoRow ? 0 : row + 1; i-- > 0;) {
      if (judged_.rows[i].a != kNoCall) return judged_.rows[i].a;
    }
    return 0;
  }

  // How near a result of this call has to be, after the steps of optimizers before it.
  double limit_at(uint32_t call_a) const { return moved_ < call_a ? std::max(limit_, kMostMoved) : limit_; }

  // A pair of calls made both, with the same numbers, of inputs that differ by no more than `most`.
  bool explained(const SeenValue& seen, const SeenValue& other, double most) const {
    const uint32_t row = judged_.row_of_a[seen.call];
    if (row == kNoRow || row != judged_.row_of_b[other.call]) return false;
    const ComparedCalls& calls = judged_.rows[row];
    const bool same = calls.group != kNoCall ||
                      same_scalars(a_.string(a_.calls[seen.call].scalars), b_.string(b_.calls[other.call].scalars));
    return same && calls.input_difference <= most && calls.output_difference <= calls.limit;
  }

  double limit_of(const SeenValue& seen) const {
    const double limit = limit_at(seen.call);
    if (noise_ == nullptr || !std::isfinite(noise_->of_value[seen.value])) return limit;
    return std::max(limit, kNoiseFactor * noise_->of_value[seen.value]);
  }

  bool agree(const SeenValue& seen, const SeenValue& other, double weight) const {
    return is_within(difference_of(a_, seen.value, b_, other.value), weight, limit_of(seen));
  }

  static bool is_within(const ValueDifference& difference, double weight, double limit) {
    return difference.kind == ValueDifference::Kind::kSame ||
           (difference.kind == ValueDifference::Kind::kNumbers && difference.relative * weight <= limit);
  }

  void look_at(const SeenValue& seen, const SeenValue& other, double weight) {
    const ValueDifference difference = difference_of(a_, seen.value, b_, other.value);
    if (difference.kind == ValueDifference::Kind::kUnknown || agree(seen, other, weight)) return;
    add({seen.value, other.value, seen.call, other.call, difference.relative, limit_of(seen)});
  }

  void add(const EndDifference& difference) {
    if (!first_ || difference.call_a < first_->call_a) first_ = difference;
  }

  const Recording &a_, &b_;
  const Divergence& judged_;
  const Noise* const noise_;
  const EndResults of_a_, of_b_;
  const double limit_, small_;  // small_: small_gradient()
  std::vector<Step> steps_;
  uint32_t moved_ = kNoCall;  // the first call of A whose parameters are apart as their gradients explain
  std::optional<EndDifference> first_;
};

}  // namespace

bool all_results_agree(const Recording& a, const Recording& b, const Divergence& judged) {
  return ResultComparison(a, b, judged, nullptr, kEqual).all_agree();
}

std::optional<EndDifference> differing_result(const Recording& a, const Recording& b, const Divergence& judged,
                                              const Noise* noise) {
  return ResultComparison(a, b, judged, noise, kUsual).find();
}

std::map<std::pair<int64_t, std::string_view>, SeenValue> written_parameters(const Recording& run) {
  EndResults results = end_results(run);
  for (const auto& key : results.unread) results.parameters.erase(key);
  return std::move(results.parameters);
}

std::vector<bool> end_values(const Recording& run) {
  const EndResults results = end_results(run);
  std::vector<bool> values(run.values.size(), false);
  for (const auto* const seen : {&results.losses, &results.leaf_gradients}) {
    for (const auto& [step, of_step] : *seen) {
      for (const SeenValue& seen_value : of_step) values[seen_value.value] = true;
    }
  }
  for (const auto* const seen : {&results.gradients, &results.parameters}) {
    for (const auto& [key, seen_value] : *seen) values[seen_value.value] = true;
  }
  return values;
}

std::vector<bool> calls_behind_results(const Recording& run) {
  const EndResults results = end_results(run);
  std::vector<bool> values(run.values.size(), false), calls(run.calls.size(), false);
  for (const auto& [step, losses] : results.losses) {
    for (const SeenValue& loss : losses) values[loss.value] = true;
  }
  for (const auto& [key, parameter] : results.parameters) values[parameter.value] = true;
  const CallsById forward = forward_calls(run);
  for (auto i = static_cast<uint32_t>(run.calls.size()); i-- > 0;) {
    const RecordedCall& call = run.calls[i];
    const bool is_backward = call.phase == Phase::kBackward;  // the engine runs the parts of gradients
    const auto outputs = run.outputs(call);
    calls[i] = calls[i] || is_backward ||
               std::any_of(outputs.begin(), outputs.end(), [&](const auto& use) { return values[use.value]; });
    if (!calls[i]) continue;
    for (const RecordedUse& use : run.inputs(call)) values[use.value] = true;
    const auto of_gradient = is_backward ? forward.find(call.forward_id) : forward.end();
    if (of_gradient != forward.end()) calls[of_gradient->second] = true;
  }
  return calls;
}

}  // namespace op_tools
