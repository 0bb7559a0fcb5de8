#include "runs/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

#include "hooks/module_path.h"
#include "hooks/op_traits.h"
#include "runs/call_keys.h"
#include "runs/compared_values.h"
#include "runs/end_results.h"
#include "runs/expected_error.h"
#include "runs/module_rows.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

using Kind = ValueDifference::Kind;

// Values that no call was seen to make (sums of gradients in the engine) may differ by this many times what was seen so
// far, and by this many rounding steps.
constexpr double kUnseenGrowth = 64;

// The engine adds gradients up where no call is seen.
bool may_be_gradient(const RecordedValue& value) {
  return value.origin == Origin::kUnknown || value.origin == Origin::kGradient;
}

// The gradient of an operator, as one of aten's: mse_loss_backward, _softmax_backward_data.
bool is_gradient_formula(const RecordedCall& call, std::string_view operator_name) {
  return call.level == Level::kAten && operator_name.find("_backward") != std::string_view::npos;
}

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
        moved_from_a_(moved_from(a)),
        moved_from_b_(moved_from(b)) {
    made_a_.assign(a.values.size(), kNoRow);
    made_b_.assign(b.values.size(), kNoRow);
    found_.row_of_a.assign(a.calls.size(), kNoRow);
    found_.row_of_b.assign(b.calls.size(), kNoRow);
    for (const RecordedValue& value : a.values) {
      if (may_be_gradient(value)) gradient_rms_ = std::max(gradient_rms_, rms_of(a, value));
    }
    for (uint32_t i = 0; i < a.calls.size(); ++i) {
      if (a.calls[i].phase == Phase::kForward) forward_.emplace(a.calls[i].id, i);
    }
    for (uint32_t i = 0; i < b.calls.size(); ++i) {
      if (b.calls[i].phase == Phase::kForward) forward_b_.emplace(b.calls[i].id, i);
    }
  }

  Divergence find();

 private:
  // What a call reads, as far as it decides about the verdict.
  struct Inputs {
    CallInputs facts;
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
  void forgive_other_calls();
  void name_end_result();
  void finish();

  Inputs look_at_inputs(const Compared& calls);
  void look_at_input(uint32_t value_a, uint32_t value_b, Inputs* inputs);
  void look_at_ports(const Compared& calls, Inputs* inputs) const;
  void look_at_forward(const Compared& calls, Inputs* inputs) const;
  void look_inside(const Compared& calls, Inputs* inputs) const;
  bool may_have_jumped(const Compared& calls) const;
  uint32_t origin_of(uint32_t value_a, uint32_t value_b, double relative, Inputs* inputs);
  bool look_at_output(uint32_t value_a, uint32_t value_b, const Inputs& inputs, ComparedCalls* row, bool* differs);
  double limit_of(uint32_t value_a, uint32_t value_b, const Inputs& inputs) const;
  double noise_at(uint32_t value_a) const {
    return noise_ && std::isfinite(noise_->of_value[value_a]) ? noise_->of_value[value_a] : 0;
  }
  void name_extra_call(const Inputs& inputs);
  void judge(const Compared& calls, const ValuePairs& outputs, const Inputs& inputs, ComparedCalls* row);

  const Recording &a_, &b_;
  const Alignment& aligned_;
  const Noise* const noise_;
  const ComparedValues pairs_;
  ModuleRows modules_;
  const std::vector<bool> unwritten_a_, unwritten_b_;
  const std::vector<uint32_t> moved_from_a_, moved_from_b_;     // by value
  double gradient_rms_ = 0;                                     // the largest
  std::unordered_map<uint64_t, uint32_t> forward_, forward_b_;  // forward calls by id
  std::vector<uint32_t> made_a_, made_b_;                       // by value: the row that handed a difference to it
  double seen_ = 0;                                             // the largest relative difference that was explained
  uint32_t first_birth_ = kNoRow;
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
  for (const uint32_t i : modules_.order()) {
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
  finish();
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
  const RecordedValue &a = a_.values[moved_from_a_[value_a]], &b = b_.values[moved_from_b_[value_b]];
  const uint32_t call_a = a.origin == Origin::kCall ? a.producer : kNoCall;
  const uint32_t call_b = b.origin == Origin::kCall ? b.producer : kNoCall;
  const bool alone_b = call_b != kNoCall && aligned_.alone_in_b(call_b) && found_.row_of_b[call_b] != kNoRow;
  const bool alone_a = call_a != kNoCall && aligned_.alone_in_a(call_a) && found_.row_of_a[call_a] != kNoRow;
  if (alone_a || alone_b) {
    const uint32_t number = alone_b ? found_.row_of_b[call_b] : found_.row_of_a[call_a];
    inputs->extra = number;
    inputs->extra_difference = relative;
    inputs->value_a = value_a, inputs->value_b = value_b;
    return number;
  }
  // What no call was seen to make may come from what was found before, by a way that was not recorded.
  const bool unseen = call_a == kNoCall || call_b == kNoCall;
  if (unseen && first_birth_ != kNoRow) return first_birth_;
  inputs->born = unseen ? Finding::kFirstInput : Finding::kOtherInput;
  inputs->value_a = value_a, inputs->value_b = value_b;
  return kNoRow;
}

void Finder::look_at_input(uint32_t value_a, uint32_t value_b, Inputs* inputs) {
  const RecordedValue &a = a_.values[value_a], &b = b_.values[value_b];
  if (unwritten_a_[value_a] || unwritten_b_[value_b]) return;
  CallInputs& facts = inputs->facts;
  facts.values.push_back(value_a);
  facts.coarsest = coarser(facts.coarsest, coarser(a.dtype, b.dtype));
  const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
  if (difference.kind == Kind::kSame) return;
  const uint32_t carried = made_b_[value_b] != kNoRow ? made_b_[value_b] : made_a_[value_a];
  if (difference.kind == Kind::kUnknown) {
    if (inputs->carried == kNoRow) inputs->carried = carried;
    return;
  }
  facts.difference = std::max(facts.difference, difference.relative);
  if (difference.norm > 0) {
    facts.absolute = std::max(facts.absolute, difference.norm / std::sqrt(static_cast<double>(numel_of(a_, a))));
  }
  if (carried != kNoRow) {
    if (inputs->carried == kNoRow) inputs->carried = carried;
    return;
  }
  const auto row_of = [](const RecordedValue& value, const std::vector<uint32_t>& rows) {
    return value.origin == Origin::kCall ? rows[value.producer] : kNoRow;
  };
  const uint32_t row_a = row_of(a_.values[moved_from_a_[value_a]], found_.row_of_a);
  const uint32_t row_b = row_of(b_.values[moved_from_b_[value_b]], found_.row_of_b);
  // Another value of the same maker: it was read again.
  for (const uint32_t row : {row_b, row_a}) {
    if (row == kNoRow || found_.rows[row].source == kNoRow || found_.rows[row].verdict == CallVerdict::kHealed)
      continue;
    if (inputs->carried == kNoRow) inputs->carried = row;
    return;
  }
  if (row_a != kNoRow && row_a == row_b) return;  // judged there: they agree
  CallInputs unseen;
  unseen.coarsest = coarser(a.dtype, b.dtype);
  unseen.composite = true;
  const double usual = expected_difference(a_, unseen, a) + kUnseenGrowth * seen_;
  // A gradient may be a sum of zero, and all that is left of it its rounding: beside the others it is nothing.
  const double beside = may_be_gradient(a) && gradient_rms_ > 0 ? rms_of(a_, a) / gradient_rms_ : 1;
  const bool is_usual = difference.relative <= usual || difference.relative * beside <= usual ||
                        difference.relative <= kNoiseFactor * noise_at(value_a);
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

// relu and what is like it make zeros of what is below their threshold: as many on both sides, and none went over it.
bool Finder::may_have_jumped(const Compared& calls) const {
  if (calls.group != kNoCall) return true;
  const RecordedCall &a = a_.calls[calls.a[0]], &b = b_.calls[calls.b[0]];
  const auto made_zeros = [](const Recording& run, const std::unordered_map<uint64_t, uint32_t>& forward,
                             const RecordedCall& call) -> std::optional<int64_t> {
    const auto made = forward.find(call.forward_id);
    if (call.phase != Phase::kBackward || call.forward_id == 0 || made == forward.end()) return std::nullopt;
    const RecordedCall& of_call = run.calls[made->second];
    const bool is_like_relu = plain_name(run.string(of_call.op)) == "relu" && of_call.outputs > 0;
    return is_like_relu ? std::optional(run.values[run.outputs(of_call)[0].value].zero) : std::nullopt;
  };
  const std::optional<int64_t> zeros_a = made_zeros(a_, forward_, a), zeros_b = made_zeros(b_, forward_b_, b);
  return !zeros_a || !zeros_b || *zeros_a < 0 || *zeros_a != *zeros_b;
}

// What a module's own code reads are the results of the modules in it, too.
void Finder::look_inside(const Compared& calls, Inputs* inputs) const {
  const ModuleRows::Inside* const inside = modules_.inside(calls.a.back());
  if (inside == nullptr) return;
  inputs->facts.difference = std::max(inputs->facts.difference, inside->difference);
  if (inputs->carried == kNoRow) inputs->carried = inside->carried;
}

Finder::Inputs Finder::look_at_inputs(const Compared& calls) {
  Inputs inputs;
  for (const auto& [value_a, value_b] : pairs_.inputs(calls)) look_at_input(value_a, value_b, &inputs);
  if (calls.group != kNoCall) look_at_ports(calls, &inputs);
  look_at_forward(calls, &inputs);
  look_inside(calls, &inputs);
  CallInputs& facts = inputs.facts;
  facts.composite = calls.group != kNoCall;
  facts.may_have_jumped = may_have_jumped(calls);
  for (const uint32_t number : calls.a) {
    const RecordedCall& call = a_.calls[number];
    const std::string_view base = base_name(a_.string(call.op));
    const bool is_backward = call.phase == Phase::kBackward && call.level == Level::kTorch;
    const bool is_any = is_module_call(a_.string(call.op));  // of any operators
    facts.is_gradient = facts.is_gradient || (is_backward && !is_any) || is_gradient_formula(call, base);
    facts.sums_products = facts.sums_products || is_any || has_trait(base, OpTrait::kSumsProducts);
    const OpTrait jumps = is_backward ? OpTrait::kGradientJumps : OpTrait::kJumps;
    facts.jumps = facts.jumps || is_any || has_trait(base, jumps);
    facts.multiplies = facts.multiplies || has_trait(base, OpTrait::kMultiplies);
    facts.normalizes = facts.normalizes || has_trait(base, OpTrait::kNormalizes);
    facts.divides = facts.divides || has_trait(base, OpTrait::kDivides);
    facts.exponentiates = facts.exponentiates || has_trait(base, OpTrait::kExponentiates);
    facts.by_element = facts.by_element || is_foreach(base) || has_trait(base, OpTrait::kStepsParameters);
    facts.composite = facts.composite || call.level == Level::kTorch;
  }
  // The operators of aten have the gradient first, then what the forward operator read and made.
  if (facts.is_gradient && facts.forward.empty() && facts.values.size() > 1) {
    facts.forward.assign(facts.values.begin() + 1, facts.values.end());
    facts.values.resize(1);
  }
  return inputs;
}

double Finder::limit_of(uint32_t value_a, uint32_t value_b, const Inputs& inputs) const {
  CallInputs facts = inputs.facts;
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

// False: it differs by more than the inputs explain. *differs: it is not equal but for rounding.
bool Finder::look_at_output(uint32_t value_a, uint32_t value_b, const Inputs& inputs, ComparedCalls* row,
                            bool* differs) {
  const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
  row->other_dtype = row->other_dtype || difference.other_dtype;
  row->other_shape = row->other_shape || difference.kind == Kind::kShape;
  if (difference.kind == Kind::kSame) return true;
  if (difference.kind == Kind::kUnknown) {
    *differs = *differs || inputs.carried != kNoRow;
    return true;
  }
  const double limit = limit_of(value_a, value_b, inputs);
  ComparedCalls one;
  one.output_difference = difference.relative;
  one.limit = limit;
  if (row->value_a == kNoCall || one.share() > row->share()) {
    row->output_difference = one.output_difference;
    row->limit = limit;
    row->noise = noise_at(value_a);
    row->value_a = value_a, row->value_b = value_b;
  }
  Inputs exact = inputs;
  exact.facts = inputs.facts.without_differences();
  *differs = *differs || difference.relative > limit_of(value_a, value_b, exact);
  if (difference.kind == Kind::kNumbers && difference.relative <= limit) {
    if (inputs.carried == kNoRow && std::isfinite(difference.relative)) seen_ = std::max(seen_, difference.relative);
    return true;
  }
  const Finding finding = difference.kind == Kind::kShape       ? Finding::kShape
                          : difference.kind == Kind::kNonfinite ? Finding::kNonfinite
                                                                : Finding::kNumbers;
  row->finding = row->finding == Finding::kNone ? finding : std::min(row->finding, finding);
  return false;
}

// What only one run does changed the results of a call that both make.
void Finder::name_extra_call(const Inputs& inputs) {
  ComparedCalls& row = found_.rows[inputs.extra];
  if (row.finding != Finding::kNone || row.source != kNoRow) return;
  row.finding = Finding::kExtraCall;
  row.source = inputs.extra;
  row.output_difference = inputs.extra_difference;
  row.value_a = inputs.value_a, row.value_b = inputs.value_b;
  first_birth_ = std::min(first_birth_, inputs.extra);
}

void Finder::judge(const Compared& calls, const ValuePairs& outputs, const Inputs& inputs, ComparedCalls* row) {
  const RecordedCall &a = a_.calls[calls.a.back()], &b = b_.calls[calls.b.back()];
  const auto self = static_cast<uint32_t>(found_.rows.size());
  bool differs = false;
  for (const auto& [value_a, value_b] : outputs) {
    if (!unwritten_a_[value_a] && !unwritten_b_[value_b]) look_at_output(value_a, value_b, inputs, row, &differs);
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
    first_birth_ = std::min(first_birth_, self);
  }
  const bool hands_on = row->verdict == CallVerdict::kBorn || row->verdict == CallVerdict::kCarried;
  for (const auto& [value_a, value_b] : outputs) {
    const bool same = difference_of(a_, value_a, b_, value_b).kind == Kind::kSame;
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
  const Inputs inputs = look_at_inputs(calls);
  row.input_difference = inputs.facts.difference;
  const ValuePairs outputs = pairs_.outputs(calls);
  judge(calls, outputs, inputs, &row);
  const auto self = static_cast<uint32_t>(found_.rows.size());
  const bool hands_on = row.verdict == CallVerdict::kBorn || row.verdict == CallVerdict::kCarried;
  modules_.judged(row.a, row.output_difference, hands_on ? self : kNoRow);
  for (const uint32_t call : calls.a) found_.row_of_a[call] = self;
  for (const uint32_t call : calls.b) found_.row_of_b[call] = self;
  found_.rows.push_back(row);
}

// Runs that have other results do not agree, though no call was found in which that was born.
void Finder::name_end_result() {
  const std::optional<EndDifference> result = differing_result(a_, b_, found_, noise_);
  if (!result) return;
  const uint32_t row_number = found_.row_of_a[result->call_a];
  if (row_number == kNoRow) return;
  ComparedCalls& row = found_.rows[row_number];
  row.verdict = CallVerdict::kCauseNotFound;
  row.finding = Finding::kEndResult;
  row.value_a = result->value_a, row.value_b = result->value_b;
  row.output_difference = result->difference, row.limit = result->limit;
  row.source = row_number;
  first_birth_ = row_number;
}

// Where one run has other calls than the other one (a network that is one operator there) calls are paired by chance.
// What was named for that alone is nothing where all results of the runs are equal.
void Finder::forgive_other_calls() {
  const auto by_calls_alone = [](const ComparedCalls& row) {
    return !row.is_birth() || row.finding == Finding::kExtraCall || row.finding == Finding::kOtherInput ||
           row.finding == Finding::kShape || row.group != kNoCall;
  };
  if (first_birth_ == kNoRow || !std::all_of(found_.rows.begin(), found_.rows.end(), by_calls_alone)) return;
  if (!all_results_agree(a_, b_)) return;
  for (ComparedCalls& row : found_.rows) {
    row.finding = Finding::kNone;
    row.source = row.via = kNoRow;
    if (row.verdict == CallVerdict::kBorn || row.verdict == CallVerdict::kCarried) row.verdict = CallVerdict::kHealed;
  }
  first_birth_ = kNoRow;
}

void Finder::finish() {
  forgive_other_calls();
  if (first_birth_ == kNoRow) name_end_result();
  found_.first = first_birth_;
  std::map<int64_t, uint32_t> births, carriers;
  for (uint32_t i = 0; i < found_.rows.size(); ++i) {
    const ComparedCalls& row = found_.rows[i];
    const int64_t step = row.a != kNoCall ? a_.calls[row.a].step : b_.calls[row.b].step;
    if (row.is_birth()) births.emplace(step, i);
    if (row.source != kNoRow) carriers.emplace(step, i);
  }
  carriers.merge(births);
  for (const auto& [step, row] : births) carriers[step] = row;
  found_.first_by_step.assign(carriers.begin(), carriers.end());
}

}  // namespace

Divergence find_divergence(const Recording& a, const Recording& b, const Alignment& alignment, const Noise* noise) {
  return Finder(a, b, alignment, noise).find();
}

}  // namespace op_tools
