#include "runs/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

#include "compare/metrics/tolerance.h"
#include "runs/call_facts.h"
#include "runs/call_keys.h"
#include "runs/compared_values.h"
#include "runs/conclusion.h"
#include "runs/expected_error.h"
#include "runs/gradient_makers.h"
#include "runs/gradient_terms.h"
#include "runs/module_rows.h"
#include "runs/optimizer_steps.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

using Kind = ValueDifference::Kind;

// Values that no call was seen to make (sums of gradients in the engine) may differ by this many times what was seen so
// far, and by this many rounding steps.
constexpr double kUnseenGrowth = 64;

class Finder {
 public:
  Finder(const Recording& a, const Recording& b, const Alignment& alignment, const Noise* noise)
      : a_(a),
        b_(b),
        aligned_(alignment),
        noise_(noise),
        pairs_(a, b, alignment),
        modules_(a),
        unwritten_a_(unwritten_values(a)),
        unwritten_b_(unwritten_values(b)),
        sources_a_(sources_of(a)),
        sources_b_(sources_of(b)),
        read_in_backward_(read_in_backward(a, sources_a_)),
        gradient_rms_(largest_gradient(a)),
        forward_(forward_calls(a)),
        forward_b_(forward_calls(b)) {
    made_a_.assign(a.values.size(), kNoRow);
    made_b_.assign(b.values.size(), kNoRow);
    found_.row_of_a.assign(a.calls.size(), kNoRow);
    found_.row_of_b.assign(b.calls.size(), kNoRow);
  }

  Divergence find();

 private:
  // What a call reads, as far as it decides about the verdict.
  struct Inputs {
    CallInputs facts;
    ValuePairs pairs;
    uint32_t reader = kNoCall;  // A's call, where it is one
    // Of an operator on lists: what goes into each item of them; -1: into all.
    struct Item {
      std::vector<uint32_t> values;
      double difference = 0, absolute = 0;
    };
    std::map<int64_t, Item> items;
    uint32_t carried = kNoRow;  // the row from which a difference comes
    Finding born = Finding::kNone;
    uint32_t extra = kNoRow;  // the row of a call that only one run makes, from which a difference comes
    double extra_difference = 0;
    uint32_t value_a = kNoCall, value_b = kNoCall;
  };

  static void hand_on(const Recording& run, uint32_t call, std::vector<uint32_t>* made);  // of what only moves
  void only_a(uint32_t call);
  void only_b(uint32_t call);
  void one_sided(const Recording& run, uint32_t call, CallVerdict verdict, std::vector<uint32_t>* made,
                 uint32_t ComparedCalls::*place);
  void compare(const Compared& calls);

  Inputs look_at_inputs(const Compared& calls, const ComparedSteps* steps);
  void look_at_input(uint32_t value_a, uint32_t value_b, int64_t item, Inputs* inputs);
  bool reads_from_outside(const Inputs& inputs, uint32_t group) const;
  bool is_usual_unseen(uint32_t value_a, const RecordedValue& b, const ValueDifference& difference) const;
  void look_at_ports(const Compared& calls, Inputs* inputs) const;
  void look_at_forward(const Compared& calls, Inputs* inputs) const;
  void look_inside(const Compared& calls, Inputs* inputs) const;
  uint32_t origin_of(uint32_t value_a, uint32_t value_b, double relative, Inputs* inputs);
  // How far results may be apart: for the inputs that there are, and for inputs that do not differ.
  struct Limits {
    double limit = 0, own = 0;
  };
  void look_at_output(uint32_t value_a, uint32_t value_b, const Limits& limits, bool carried, ComparedCalls* row,
                      bool* differs);
  void look_at_steps(const ComparedSteps& steps, bool carried, ComparedCalls* row, bool* differs);
  Limits limits_of(uint32_t value_a, uint32_t value_b, int64_t item, const Inputs& inputs) const;
  double limit_of(uint32_t value_a, uint32_t value_b, CallInputs facts) const;
  double noise_at(uint32_t value_a) const {
    return noise_ && std::isfinite(noise_->of_value[value_a]) ? noise_->of_value[value_a] : 0;
  }
  void name_extra_call(const Inputs& inputs);
  void name_group(uint32_t row, uint32_t value_a, uint32_t value_b, const ValueDifference& difference);
  void judge(const Compared& calls, const Inputs& inputs, const ComparedSteps* steps, ComparedCalls* row);

  const Recording &a_, &b_;
  const Alignment& aligned_;
  const Noise* const noise_;
  const ComparedValues pairs_;
  ModuleRows modules_;
  const std::vector<bool> unwritten_a_, unwritten_b_;
  const std::vector<uint32_t> sources_a_, sources_b_;  // by value
  const std::vector<bool> read_in_backward_;           // by A's value
  const double gradient_rms_;                          // the largest
  const CallsById forward_, forward_b_;
  std::vector<uint32_t> made_a_, made_b_;  // by value: the row that handed a difference to it
  GradientTerms terms_;
  double seen_ = 0;  // the largest relative difference that was explained
  Divergence found_;
};

Divergence Finder::find() {
  uint32_t next_b = 0;
  const auto skipped = [](const std::vector<int64_t>& steps, int64_t step) {
    return std::binary_search(steps.begin(), steps.end(), step);
  };
  const auto before_b = [&](uint32_t end) {
    for (; next_b < end; ++next_b) {
      if (aligned_.moves_b[next_b]) hand_on(b_, next_b, &made_b_);
      if (aligned_.alone_in_b(next_b) && !skipped(aligned_.steps_only_b, b_.calls[next_b].step)) only_b(next_b);
    }
  };
  for (const uint32_t i : behind_makers(a_, sources_a_, aligned_, modules_.order())) {
    if (aligned_.moves_a[i]) {
      hand_on(a_, i, &made_a_);
    } else if (aligned_.b_of_a[i] != kNoCall) {
      before_b(aligned_.b_of_a[i]);
      compare({{i}, {aligned_.b_of_a[i]}});
    } else if (aligned_.group_of_a[i] != kNoCall) {
      const CallGroup& group = aligned_.groups[aligned_.group_of_a[i]];
      if (group.a.back() != i) continue;
      before_b(group.b.back());
      compare({group.a, group.b, aligned_.group_of_a[i]});
    } else if (!skipped(aligned_.steps_only_a, a_.calls[i].step)) {
      only_a(i);
    }
  }
  before_b(static_cast<uint32_t>(b_.calls.size()));
  conclude(a_, b_, noise_, &found_);
  return std::move(found_);
}

void Finder::hand_on(const Recording& run, uint32_t call, std::vector<uint32_t>* made) {
  (*made)[run.outputs(run.calls[call])[0].value] = (*made)[run.inputs(run.calls[call])[0].value];
}

void Finder::only_a(uint32_t call) {
  found_.row_of_a[call] = static_cast<uint32_t>(found_.rows.size());
  one_sided(a_, call, CallVerdict::kOnlyA, &made_a_, &ComparedCalls::a);
}

void Finder::only_b(uint32_t call) {
  found_.row_of_b[call] = static_cast<uint32_t>(found_.rows.size());
  one_sided(b_, call, CallVerdict::kOnlyB, &made_b_, &ComparedCalls::b);
}

// Hands on what its inputs carry.
void Finder::one_sided(const Recording& run, uint32_t number, CallVerdict verdict, std::vector<uint32_t>* made,
                       uint32_t ComparedCalls::*place) {
  const RecordedCall& call = run.calls[number];
  ComparedCalls row;
  row.*place = number;
  row.verdict = verdict;
  for (const RecordedUse& use : run.inputs(call)) {
    if (row.via == kNoRow) row.via = (*made)[use.value];
  }
  if (row.via != kNoRow) row.source = found_.rows[row.via].source;
  const auto self = static_cast<uint32_t>(found_.rows.size());
  for (const RecordedUse& use : run.outputs(call)) {
    (*made)[use.value] = row.via == kNoRow ? kNoRow : self;
  }
  found_.rows.push_back(row);
}

// Why two values differ that come from no pair of calls. Returns the row that it came from, or kNoRow: it is born here.
uint32_t Finder::origin_of(uint32_t value_a, uint32_t value_b, double relative, Inputs* inputs) {
  const RecordedValue &a = a_.values[sources_a_[value_a]], &b = b_.values[sources_b_[value_b]];
  const uint32_t call_a = a.origin == Origin::kCall ? a.producer : kNoCall;
  const uint32_t call_b = b.origin == Origin::kCall ? b.producer : kNoCall;
  const bool alone_b = call_b != kNoCall && aligned_.alone_in_b(call_b) && found_.row_of_b[call_b] != kNoRow;
  const bool alone_a = call_a != kNoCall && aligned_.alone_in_a(call_a) && found_.row_of_a[call_a] != kNoRow;
  if (alone_a || alone_b) {
    const uint32_t number = alone_b ? found_.row_of_b[call_b] : found_.row_of_a[call_a];
    if (inputs->extra == kNoRow || number < inputs->extra) {
      inputs->extra = number;
      inputs->extra_difference = relative;
      inputs->value_a = value_a, inputs->value_b = value_b;
    }
    return number;
  }
  // What no call was seen to make may come from what was found before, by a way that was not recorded.
  const bool unseen = call_a == kNoCall || call_b == kNoCall;
  if (unseen && found_.first != kNoRow) return found_.first;
  inputs->born = unseen ? Finding::kFirstInput : Finding::kOtherInput;
  inputs->value_a = value_a, inputs->value_b = value_b;
  return kNoRow;
}

// Not in the line of the group itself, where calls of one name meet by chance.
bool Finder::reads_from_outside(const Inputs& inputs, uint32_t group) const {
  if (inputs.reader == kNoCall) return false;
  const RecordedCall &reader = a_.calls[inputs.reader], &made = a_.calls[found_.rows[group].a];
  return reader.line != made.line || reader.module != made.module;
}

// No more than rounding explains in a value that no call was seen to make.
bool Finder::is_usual_unseen(uint32_t value_a, const RecordedValue& b, const ValueDifference& difference) const {
  if (difference.kind != Kind::kNumbers) return false;
  const RecordedValue& a = a_.values[value_a];
  if (may_be_gradient(a)) {
    const double unit = rounding_of(coarser(a.dtype, b.dtype)).unit;
    if (const auto of_sum = terms_.sum_difference(a.shape, a.norm, unit)) return difference.norm <= *of_sum;
  }
  CallInputs unseen;
  unseen.coarsest = coarser(a.dtype, b.dtype);
  unseen.composite = true;
  const double usual = expected_difference(a_, unseen, a) + kUnseenGrowth * seen_;
  // A gradient may be a sum of zero, and all that is left of it its rounding: beside the others it is nothing.
  const double beside = may_be_gradient(a) && gradient_rms_ > 0 ? rms_of(a_, a) / gradient_rms_ : 1;
  return difference.relative * std::min(1.0, beside) <= usual;
}

void Finder::look_at_input(uint32_t value_a, uint32_t value_b, int64_t item, Inputs* inputs) {
  const RecordedValue &a = a_.values[value_a], &b = b_.values[value_b];
  if (unwritten_a_[value_a] || unwritten_b_[value_b]) return;
  CallInputs& facts = inputs->facts;
  Inputs::Item* const of_item = facts.by_element ? &inputs->items[item] : nullptr;
  facts.values.push_back(value_a);
  if (of_item) of_item->values.push_back(value_a);
  facts.coarsest = coarser(facts.coarsest, coarser(a.dtype, b.dtype));
  const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
  if (difference.kind == Kind::kSame) return;
  const uint32_t carried = made_b_[value_b] != kNoRow ? made_b_[value_b] : made_a_[value_a];
  if (difference.kind == Kind::kUnknown) {
    if (inputs->carried == kNoRow) inputs->carried = carried;
    return;
  }
  const double absolute = difference.norm > 0 ? difference.norm / std::sqrt(static_cast<double>(numel_of(a_, a))) : 0;
  facts.difference = std::max(facts.difference, difference.relative);
  facts.absolute = std::max(facts.absolute, absolute);
  if (of_item) {
    of_item->difference = std::max(of_item->difference, difference.relative);
    of_item->absolute = std::max(of_item->absolute, absolute);
  }
  if (carried != kNoRow) {
    if (inputs->carried == kNoRow) inputs->carried = carried;
    return;
  }
  const auto row_of = [](const RecordedValue& value, const std::vector<uint32_t>& rows) {
    return value.origin == Origin::kCall ? rows[value.producer] : kNoRow;
  };
  const uint32_t row_a = row_of(a_.values[sources_a_[value_a]], found_.row_of_a);
  const uint32_t row_b = row_of(b_.values[sources_b_[value_b]], found_.row_of_b);
  // Another value of the same maker: it was read again.
  for (const uint32_t row : {row_b, row_a}) {
    if (row == kNoRow || found_.rows[row].source == kNoRow || found_.rows[row].verdict == CallVerdict::kHealed)
      continue;
    if (inputs->carried == kNoRow) inputs->carried = row;
    return;
  }
  if (row_a != kNoRow && row_a == row_b) {  // judged there: they agree
    const bool in_group = found_.rows[row_a].group != kNoCall;
    if (in_group && difference.relative > kSameResult && reads_from_outside(*inputs, row_a)) {
      name_group(row_a, value_a, value_b, difference);
      if (inputs->carried == kNoRow) inputs->carried = row_a;
    }
    return;
  }
  const bool is_usual =
      is_usual_unseen(value_a, b, difference) || difference.relative <= kNoiseFactor * noise_at(value_a);
  if (is_usual || inputs->born != Finding::kNone) return;
  const uint32_t origin = origin_of(value_a, value_b, difference.relative, inputs);
  if (inputs->carried == kNoRow) inputs->carried = origin;
}

// A difference that reaches a group reaches it by any of its inputs.
void Finder::look_at_ports(const Compared& calls, Inputs* inputs) const {
  const auto look = [&](const std::vector<uint32_t>& values, const std::vector<uint32_t>& made) {
    for (const uint32_t value : values) {
      if (inputs->carried == kNoRow) inputs->carried = made[value];
    }
  };
  look(pairs_.ports_a(calls).inputs, made_a_);
  look(pairs_.ports_b(calls).inputs, made_b_);
}

// A backward call of the torch level reads what its forward call read and made, too.
void Finder::look_at_forward(const Compared& calls, Inputs* inputs) const {
  for (const uint32_t number : calls.a) {
    const RecordedCall& call = a_.calls[number];
    if (call.phase != Phase::kBackward || call.level != Level::kTorch) continue;
    const auto forward = forward_.find(call.forward_id);
    if (call.forward_id == 0 || forward == forward_.end()) continue;
    const RecordedCall& made = a_.calls[forward->second];
    // Its inputs last: what it divides by is one of them.
    for (const auto& uses : {a_.outputs(made), a_.inputs(made)}) {
      for (const RecordedUse& use : uses) {
        inputs->facts.forward.push_back(use.value);
        inputs->facts.coarsest = coarser(inputs->facts.coarsest, a_.values[use.value].dtype);
      }
    }
    if (made.outputs == 1 && numel_of(a_, a_.values[a_.outputs(made)[0].value]) == 1) {
      inputs->facts.forward_result = rms_of(a_, a_.values[a_.outputs(made)[0].value]);
    }
    const uint32_t row_number = found_.row_of_a[forward->second];
    if (row_number == kNoRow) continue;
    const ComparedCalls& row = found_.rows[row_number];
    for (const double one : {row.input_difference, row.output_difference}) {
      inputs->facts.difference = std::max(inputs->facts.difference, one);
    }
    if (row.source != kNoRow && inputs->carried == kNoRow) inputs->carried = row_number;
  }
}

// What a module's own code reads are the results of the modules in it, too.
void Finder::look_inside(const Compared& calls, Inputs* inputs) const {
  const ModuleRows::Inside* const inside = modules_.inside(calls.a.back());
  if (inside == nullptr) return;
  inputs->facts.difference = std::max(inputs->facts.difference, inside->difference);
  if (inputs->carried == kNoRow) inputs->carried = inside->carried;
}

Finder::Inputs Finder::look_at_inputs(const Compared& calls, const ComparedSteps* steps) {
  Inputs inputs;
  if (calls.group == kNoCall) inputs.reader = calls.a[0];
  CallInputs& facts = inputs.facts;
  facts = facts_of(a_, calls.a, calls.group != kNoCall);
  const RecordedCall &a = a_.calls[calls.a[0]], &b = b_.calls[calls.b[0]];
  facts.may_have_jumped = calls.group != kNoCall || may_have_jumped(a_, forward_, a, b_, forward_b_, b);
  inputs.pairs = steps ? steps->inputs : pairs_.inputs(calls);
  const bool on_lists = facts.by_element && calls.group == kNoCall && inputs.pairs.size() == a.inputs;
  for (size_t i = 0; i < inputs.pairs.size(); ++i) {
    const auto& [value_a, value_b] = inputs.pairs[i];
    look_at_input(value_a, value_b, on_lists ? list_item(a_.string(a_.inputs(a)[i].place)) : -1, &inputs);
  }
  if (calls.group != kNoCall) look_at_ports(calls, &inputs);
  look_at_forward(calls, &inputs);
  look_inside(calls, &inputs);
  // The operators of aten have the gradient first, then what the forward operator read and made.
  if (facts.is_gradient && facts.forward.empty() && facts.values.size() > 1) {
    facts.forward.assign(facts.values.begin() + 1, facts.values.end());
    facts.values.resize(1);
  }
  return inputs;
}

Finder::Limits Finder::limits_of(uint32_t value_a, uint32_t value_b, int64_t item, const Inputs& inputs) const {
  CallInputs facts = inputs.facts;
  const auto own = inputs.items.find(item);
  if (item >= 0 && own != inputs.items.end()) {
    facts.values = own->second.values;
    facts.difference = own->second.difference, facts.absolute = own->second.absolute;
    if (const auto of_all = inputs.items.find(-1); of_all != inputs.items.end()) {
      facts.values.insert(facts.values.begin(), of_all->second.values.begin(), of_all->second.values.end());
      facts.difference = std::max(facts.difference, of_all->second.difference);
      facts.absolute = std::max(facts.absolute, of_all->second.absolute);
    }
  }
  Limits limits{limit_of(value_a, value_b, facts), limit_of(value_a, value_b, facts.without_differences())};
  // A step that makes much of a gradient which is rounding alone gives its parameter no more than any step.
  const StringNumber name = a_.values[value_a].name;
  if (name == 0 || limits.limit <= kSameResult) return limits;
  const auto before = std::find_if(inputs.pairs.begin(), inputs.pairs.end(),
                                   [&](const auto& pair) { return a_.values[pair.first].name == name; });
  if (before != inputs.pairs.end() && before->first != value_a && before->second != value_b) {
    const double most = most_of_step(a_, before->first, value_a, b_, before->second, value_b);
    limits.limit = std::min(limits.limit, std::max(most, limits.own));
  }
  return limits;
}

double Finder::limit_of(uint32_t value_a, uint32_t value_b, CallInputs facts) const {
  facts.coarsest = coarser(facts.coarsest, coarser(a_.values[value_a].dtype, b_.values[value_b].dtype));
  if (noise_ == nullptr || !std::isfinite(noise_->of_value[value_a])) {
    return expected_difference(a_, facts, a_.values[value_a]);
  }
  // What the noise of the inputs became shows how much the call makes of a difference.
  double noise_in = 0;
  for (const uint32_t value : facts.values) noise_in = std::max(noise_in, noise_at(value));
  const double growth = noise_in > 0 ? std::max(1.0, facts.difference / noise_in) : 1;
  const bool shown = noise_in > 0 && noise_at(value_a) > 0;
  if (shown) facts.difference = std::min(facts.difference, 0.0);
  return std::max(expected_difference(a_, facts, a_.values[value_a]), kNoiseFactor * growth * noise_at(value_a));
}

// *differs: it is not equal but for rounding. The row has a finding where it differs by more than the inputs explain.
void Finder::look_at_output(uint32_t value_a, uint32_t value_b, const Limits& limits, bool carried, ComparedCalls* row,
                            bool* differs) {
  const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
  row->other_dtype = row->other_dtype || difference.other_dtype;
  row->other_shape = row->other_shape || difference.kind == Kind::kShape;
  if (difference.kind == Kind::kSame) return;
  if (difference.kind == Kind::kUnknown) {
    *differs = *differs || carried;
    return;
  }
  ComparedCalls one;
  one.output_difference = difference.relative;
  one.limit = limits.limit;
  if (row->value_a == kNoCall || one.share() > row->share()) {
    row->output_difference = one.output_difference;
    row->limit = one.limit;
    row->noise = noise_at(value_a);
    row->value_a = value_a, row->value_b = value_b;
  }
  *differs = *differs || difference.relative > limits.own;
  if (difference.kind == Kind::kNumbers && difference.relative <= limits.limit) {
    if (!carried && std::isfinite(difference.relative)) seen_ = std::max(seen_, difference.relative);
    return;
  }
  const Finding finding = difference.kind == Kind::kShape       ? Finding::kShape
                          : difference.kind == Kind::kNonfinite ? Finding::kNonfinite
                                                                : Finding::kNumbers;
  row->finding = row->finding == Finding::kNone ? finding : std::min(row->finding, finding);
}

void Finder::look_at_steps(const ComparedSteps& steps, bool carried, ComparedCalls* row, bool* differs) {
  for (const StepResult& result : steps.results) {
    if (result.value_a != kNoCall && result.value_b != kNoCall) {
      const double limit = std::max(result.limit, kNoiseFactor * noise_at(result.value_a));
      look_at_output(result.value_a, result.value_b, {limit, result.own}, carried, row, differs);
    } else if (row->finding == Finding::kNone) {
      *differs = true;
      row->finding = Finding::kExtraCall;
      row->value_a = result.value_a, row->value_b = result.value_b;
    }
  }
}

// Which results of two groups belong together their readers say: one that a pair of calls reads in the same place.
void Finder::name_group(uint32_t number, uint32_t value_a, uint32_t value_b, const ValueDifference& difference) {
  ComparedCalls& row = found_.rows[number];
  row.finding = difference.kind == Kind::kShape       ? Finding::kShape
                : difference.kind == Kind::kNonfinite ? Finding::kNonfinite
                                                      : Finding::kNumbers;
  row.verdict = CallVerdict::kBorn;
  row.output_difference = difference.relative;
  row.limit = kSameResult;
  row.value_a = value_a, row.value_b = value_b;
  row.source = number;
  found_.first = std::min(found_.first, number);
}

// What only one run does changed the results of a call that both make.
void Finder::name_extra_call(const Inputs& inputs) {
  ComparedCalls& row = found_.rows[inputs.extra];
  if (row.finding != Finding::kNone || row.source != kNoRow) return;
  row.finding = Finding::kExtraCall;
  row.source = inputs.extra;
  row.output_difference = inputs.extra_difference;
  row.value_a = inputs.value_a, row.value_b = inputs.value_b;
  found_.first = std::min(found_.first, inputs.extra);
}

void Finder::judge(const Compared& calls, const Inputs& inputs, const ComparedSteps* steps, ComparedCalls* row) {
  const RecordedCall &a = a_.calls[calls.a.back()], &b = b_.calls[calls.b.back()];
  const auto self = static_cast<uint32_t>(found_.rows.size());
  const bool carried = inputs.carried != kNoRow;
  bool differs = false;
  ValuePairs outputs;
  if (steps) {
    look_at_steps(*steps, carried, row, &differs);
    for (const StepResult& result : steps->results) {
      if (result.value_a != kNoCall && result.value_b != kNoCall) outputs.emplace_back(result.value_a, result.value_b);
    }
  } else {
    outputs = pairs_.outputs(calls);
    const bool in_order = calls.group == kNoCall && outputs.size() == a.outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& [value_a, value_b] = outputs[i];
      if (unwritten_a_[value_a] || unwritten_b_[value_b] || pairs_.is_guess(calls, value_a, value_b)) continue;
      const int64_t item = in_order ? list_item(a_.string(a_.outputs(a)[i].place)) : -1;
      look_at_output(value_a, value_b, limits_of(value_a, value_b, item, inputs), carried, row, &differs);
    }
  }
  if ((a.error == 0) != (b.error == 0)) row->finding = Finding::kError;
  const bool grew = row->finding != Finding::kNone;
  const bool matters = differs || grew;
  if (matters && inputs.extra != kNoRow) name_extra_call(inputs);
  if (inputs.born != Finding::kNone && matters) {
    row->finding = inputs.born;
    row->value_a = inputs.value_a, row->value_b = inputs.value_b;
  } else if (inputs.carried != kNoRow) {
    row->finding = Finding::kNone;
    row->verdict = matters ? CallVerdict::kCarried : CallVerdict::kHealed;
    row->via = inputs.carried;
    row->source = found_.rows[inputs.carried].source;
  } else if (grew && row->finding == Finding::kNumbers && (a.random != 0 || b.random != 0)) {
    row->finding = Finding::kRandom;
  }
  if (row->finding != Finding::kNone) {
    row->verdict = CallVerdict::kBorn;
    row->source = self;
    found_.first = std::min(found_.first, self);
  }
  const bool hands_on = row->verdict == CallVerdict::kBorn || row->verdict == CallVerdict::kCarried;
  for (const auto& [value_a, value_b] : outputs) {
    const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
    const bool same = difference.kind == Kind::kSame;
    const bool is_term =
        a.phase == Phase::kBackward && !read_in_backward_[value_a] && (same || difference.kind == Kind::kNumbers);
    if (is_term) terms_.add(a_.values[value_a].shape, a_.values[value_a].norm, hands_on ? 0 : difference.norm);
    made_a_[value_a] = made_b_[value_b] = hands_on && !same ? self : kNoRow;
  }
}

void Finder::compare(const Compared& calls) {
  ComparedCalls row;
  row.a = calls.a.back(), row.b = calls.b.back();
  row.group = calls.group;
  const RecordedCall &a = a_.calls[row.a], &b = b_.calls[row.b];
  row.other_op = calls.group != kNoCall || plain_name(a_.string(a.op)) != plain_name(b_.string(b.op));
  row.other_scalars = !row.other_op && a_.string(a.scalars) != b_.string(b.scalars);
  std::optional<ComparedSteps> steps;
  if (calls.group != kNoCall && aligned_.groups[calls.group].is_optimizer_step) {
    steps = compare_steps(a_, calls.a, b_, calls.b);
  }
  const ComparedSteps* const compared_steps = steps ? &*steps : nullptr;
  const Inputs inputs = look_at_inputs(calls, compared_steps);
  row.input_difference = inputs.facts.difference;
  judge(calls, inputs, compared_steps, &row);
  const auto self = static_cast<uint32_t>(found_.rows.size());
  const bool hands_on = row.verdict == CallVerdict::kBorn || row.verdict == CallVerdict::kCarried;
  modules_.judged(row.a, row.output_difference, hands_on ? self : kNoRow);
  for (const uint32_t call : calls.a) found_.row_of_a[call] = self;
  for (const uint32_t call : calls.b) found_.row_of_b[call] = self;
  found_.rows.push_back(row);
}

}  // namespace

Divergence find_divergence(const Recording& a, const Recording& b, const Alignment& alignment, const Noise* noise) {
  return Finder(a, b, alignment, noise).find();
}

}  // namespace op_tools
