#include "runs/compared_inputs.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "compare/metrics/tolerance.h"
#include "runs/call_keys.h"
#include "runs/gradient_makers.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

using Kind = ValueDifference::Kind;

// Values that no call was seen to make (sums of gradients in the engine) may differ by this many times the differences
// so far, and by this many rounding steps.
constexpr double kUnseenGrowth = 64;

}  // namespace

Finding finding_of(const ValueDifference& difference) {
  return difference.kind == Kind::kShape       ? Finding::kShape
         : difference.kind == Kind::kNonfinite ? Finding::kNonfinite
                                               : Finding::kNumbers;
}

ComparedSoFar::ComparedSoFar(const Recording& a, const Recording& b)
    : made_a(a.values.size(), kNoRow), made_b(b.values.size(), kNoRow), usual(a.values.size(), 0), modules(a) {
  divergence.row_of_a.assign(a.calls.size(), kNoRow);
  divergence.row_of_b.assign(b.calls.size(), kNoRow);
}

void ComparedSoFar::note_birth(uint32_t row, uint32_t seen_in) {
  if (divergence.first != kNoRow && std::tie(first_seen_in, divergence.first) <= std::tie(seen_in, row)) return;
  divergence.first = row;
  first_seen_in = seen_in;
}

InputComparison::InputComparison(const Recording& a, const Recording& b, const Alignment& alignment,
                                 const ComparedValues& pairs, const Noise* noise, ComparedSoFar* so_far)
    : a_(a),
      b_(b),
      aligned_(alignment),
      pairs_(pairs),
      noise_(noise),
      so_far_(so_far),
      tf32_a_(a),
      tf32_b_(b),
      unwritten_a_(unwritten_values(a)),
      unwritten_b_(unwritten_values(b)),
      sources_a_(sources_of(a)),
      sources_b_(sources_of(b)),
      gradient_rms_(largest_gradient(a)),
      forward_(forward_calls(a)),
      forward_b_(forward_calls(b)) {}

// No more than rounding explains in a value that no call was seen to make.
bool InputComparison::is_usual_unseen(uint32_t value_a, const RecordedValue& b,
                                      const ValueDifference& difference) const {
  if (difference.kind != Kind::kNumbers) return false;
  const RecordedValue& a = a_.values[value_a];
  const bool is_gradient = may_be_gradient(a) || may_be_gradient(b);  // the engine takes some as a call made them
  if (is_gradient) {
    const double unit = rounding_of(coarser(a.dtype, b.dtype)).unit;
    if (const auto of_sum = so_far_->terms.sum_difference(a.shape, a.norm, unit)) return difference.norm <= *of_sum;
  }
  CallInputs unseen;
  unseen.coarsest = coarser(a.dtype, b.dtype);
  unseen.composite = true;
  const double usual = expected_difference(a_, unseen, a) + kUnseenGrowth * so_far_->explained;
  // A gradient may be a sum of zero, and all that is left of it its rounding: beside the others it is nothing.
  const double beside = is_gradient && gradient_rms_ > 0 ? rms_of(a_, a) / gradient_rms_ : 1;
  return difference.relative * std::min(1.0, beside) <= usual;
}

// In the line of the group itself calls of the same name meet by chance: there all their inputs have to come from the
// same rows.
bool InputComparison::knows_results_of(uint32_t group, const ComparedInputs& inputs) const {
  if (inputs.reader == kNoCall) return false;
  const RecordedCall &reader = a_.calls[inputs.reader], &maker = a_.calls[so_far_->divergence.rows[group].a];
  if (reader.line != maker.line || reader.module != maker.module) return true;
  return std::all_of(inputs.pairs.begin(), inputs.pairs.end(), [&](const auto& pair) {
    const RecordedValue &value = a_.values[sources_a_[pair.first]], &other = b_.values[sources_b_[pair.second]];
    if (value.origin != other.origin || value.origin != Origin::kCall) return value.origin == other.origin;
    const uint32_t row = so_far_->divergence.row_of_a[value.producer];
    return row != kNoRow && row == so_far_->divergence.row_of_b[other.producer];
  });
}

// Both are of the same pair of calls, and neither is the result that was judged there.
bool InputComparison::is_read_again(uint32_t value_a, uint32_t value_b) const {
  return first_made_as(a_, sources_a_[value_a]) && first_made_as(b_, sources_b_[value_b]);
}

// Why two values differ that come from no pair of calls. Returns the row that it came from, or kNoRow: it is born here.
uint32_t InputComparison::origin_of(uint32_t value_a, uint32_t value_b, double relative, ComparedInputs* inputs) {
  const RecordedValue &a = a_.values[sources_a_[value_a]], &b = b_.values[sources_b_[value_b]];
  const uint32_t call_a = a.origin == Origin::kCall ? a.producer : kNoCall;
  const uint32_t call_b = b.origin == Origin::kCall ? b.producer : kNoCall;
  const bool alone_b =
      call_b != kNoCall && aligned_.alone_in_b(call_b) && so_far_->divergence.row_of_b[call_b] != kNoRow;
  const bool alone_a =
      call_a != kNoCall && aligned_.alone_in_a(call_a) && so_far_->divergence.row_of_a[call_a] != kNoRow;
  if (alone_a || alone_b) {
    const uint32_t number = alone_b ? so_far_->divergence.row_of_b[call_b] : so_far_->divergence.row_of_a[call_a];
    if (inputs->extra == kNoRow || number < inputs->extra) {
      inputs->extra = number;
      inputs->extra_difference = relative;
      inputs->value_a = value_a, inputs->value_b = value_b;
    }
    return number;
  }
  // A value that no call was seen to make may come from an earlier difference, by a way that was not recorded.
  const bool unseen = call_a == kNoCall || call_b == kNoCall, again = is_read_again(value_a, value_b);
  if ((unseen || again) && so_far_->divergence.first != kNoRow) return so_far_->divergence.first;
  inputs->born = unseen ? Finding::kFirstInput : again ? Finding::kChangedInput : Finding::kOtherInput;
  inputs->value_a = value_a, inputs->value_b = value_b;
  return kNoRow;
}

// Readers tell which results of two groups belong together: those that a pair of calls reads in the same place.
void InputComparison::name_group(uint32_t number, uint32_t value_a, uint32_t value_b,
                                 const ValueDifference& difference) {
  ComparedCalls& row = so_far_->divergence.rows[number];
  row.finding = finding_of(difference);
  row.verdict = CallVerdict::kBorn;
  row.output_difference = difference.relative;
  row.limit = kSameResult;
  row.value_a = value_a, row.value_b = value_b;
  row.source = number;
  row.seen_in = static_cast<uint32_t>(so_far_->divergence.rows.size());
  so_far_->note_birth(number, row.seen_in);
}

void InputComparison::look_at_input(uint32_t value_a, uint32_t value_b, int64_t item, ComparedInputs* inputs) {
  const RecordedValue &a = a_.values[value_a], &b = b_.values[value_b];
  if (is_unwritten(value_a, value_b)) return;
  CallInputs& facts = inputs->facts;
  ComparedInputs::Item* const of_item = facts.by_element ? &inputs->items[item] : nullptr;
  facts.values.push_back(value_a);
  if (of_item) of_item->values.push_back(value_a);
  facts.coarsest = coarser(facts.coarsest, coarser(a.dtype, b.dtype));
  const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
  if (difference.kind == Kind::kSame) return;
  const uint32_t carried = so_far_->made_b[value_b] != kNoRow ? so_far_->made_b[value_b] : so_far_->made_a[value_a];
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
    // Calls of a single run change nothing of a value that is equal again.
    const uint32_t source = so_far_->divergence.rows[carried].source;
    const bool is_healed = difference.kind == Kind::kNumbers && difference.relative <= kSameResult &&
                           source != kNoRow && so_far_->divergence.rows[source].is_by_calls_alone();
    if (inputs->carried == kNoRow && !is_healed) inputs->carried = carried;
    return;
  }
  const auto row_of = [](const RecordedValue& value, const std::vector<uint32_t>& rows) {
    return value.origin == Origin::kCall ? rows[value.producer] : kNoRow;
  };
  const uint32_t row_a = row_of(a_.values[sources_a_[value_a]], so_far_->divergence.row_of_a);
  const uint32_t row_b = row_of(b_.values[sources_b_[value_b]], so_far_->divergence.row_of_b);
  // Another value of the same maker: it was read again.
  for (const uint32_t row : {row_b, row_a}) {
    if (row == kNoRow || so_far_->divergence.rows[row].source == kNoRow ||
        so_far_->divergence.rows[row].verdict == CallVerdict::kHealed)
      continue;
    if (inputs->carried == kNoRow) inputs->carried = row;
    return;
  }
  if (row_a != kNoRow && row_a == row_b) {  // judged there: they agree
    const uint32_t group = so_far_->divergence.rows[row_a].group;
    // The parameters of a step were compared by their names.
    const bool is_named =
        group != kNoCall && !aligned_.groups[group].is_optimizer_step && difference.relative > kSameResult &&
        knows_results_of(row_a, *inputs) &&
        !pairs_.are_exchanged({aligned_.groups[group].a, aligned_.groups[group].b, group}, value_a, value_b);
    if (is_named) {
      name_group(row_a, value_a, value_b, difference);
      if (inputs->carried == kNoRow) inputs->carried = row_a;
    }
    if (group != kNoCall || !is_read_again(value_a, value_b)) return;
  }
  const RecordedUse* const original = first_made_as(a_, sources_a_[value_a]);
  const bool is_usual = is_usual_unseen(value_a, b, difference) ||
                        difference.relative <= kNoiseFactor * noise_at(noise_, value_a) ||
                        difference.relative <= so_far_->usual[original ? original->value : sources_a_[value_a]];
  if (is_usual || inputs->born != Finding::kNone) return;
  const uint32_t origin = origin_of(value_a, value_b, difference.relative, inputs);
  if (inputs->carried == kNoRow) inputs->carried = origin;
}

// A difference that reaches a group reaches it by any of its inputs.
void InputComparison::look_at_ports(const Compared& calls, ComparedInputs* inputs) const {
  const auto look = [&](const std::vector<uint32_t>& values, const std::vector<uint32_t>& results) {
    for (const uint32_t value : values) {
      if (inputs->carried == kNoRow) inputs->carried = results[value];
    }
  };
  look(pairs_.ports_a(calls).inputs, so_far_->made_a);
  look(pairs_.ports_b(calls).inputs, so_far_->made_b);
}

// A backward call of the torch level reads the inputs and results of its forward call, too.
void InputComparison::look_at_forward(const Compared& calls, ComparedInputs* inputs) const {
  for (const uint32_t number : calls.a) {
    const RecordedCall& call = a_.calls[number];
    if (call.phase != Phase::kBackward || call.level != Level::kTorch) continue;
    const auto forward = forward_.find(call.forward_id);
    if (call.forward_id == 0 || forward == forward_.end()) continue;
    const RecordedCall& forward_call = a_.calls[forward->second];
    // Its inputs last: its divisor is among them.
    for (const auto& uses : {a_.outputs(forward_call), a_.inputs(forward_call)}) {
      for (const RecordedUse& use : uses) {
        inputs->facts.forward.push_back(use.value);
        inputs->facts.coarsest = coarser(inputs->facts.coarsest, a_.values[use.value].dtype);
      }
    }
    if (forward_call.outputs == 1 && numel_of(a_, a_.values[a_.outputs(forward_call)[0].value]) == 1) {
      inputs->facts.forward_result = rms_of(a_, a_.values[a_.outputs(forward_call)[0].value]);
    }
    const uint32_t row_number = so_far_->divergence.row_of_a[forward->second];
    if (row_number == kNoRow) continue;
    const ComparedCalls& row = so_far_->divergence.rows[row_number];
    for (const double difference : {row.input_difference, row.output_difference}) {
      inputs->facts.difference = std::max(inputs->facts.difference, difference);
    }
    if (row.source != kNoRow && inputs->carried == kNoRow) inputs->carried = row_number;
  }
}

// A module's own code reads the results of the modules in it, too.
void InputComparison::look_inside(const Compared& calls, ComparedInputs* inputs) const {
  const ModuleRows::Inside* const inside = so_far_->modules.inside(calls.a.back());
  if (inside == nullptr) return;
  inputs->facts.difference = std::max(inputs->facts.difference, inside->difference);
  if (inputs->carried == kNoRow) inputs->carried = inside->carried;
}

ComparedInputs InputComparison::look_at(const Compared& calls, const ComparedSteps* steps) {
  ComparedInputs inputs;
  if (calls.group == kNoCall) inputs.reader = calls.a[0];
  CallInputs& facts = inputs.facts;
  facts = facts_of(a_, calls.a, calls.group != kNoCall);
  const RecordedCall &a = a_.calls[calls.a[0]], &b = b_.calls[calls.b[0]];
  facts.may_have_jumped = calls.group != kNoCall || may_have_jumped(a_, forward_, a, b_, forward_b_, b);
  const auto in_tf32 = [](const Recording& run, const Tf32Products& products, const CallNumbers& numbers) {
    return std::any_of(numbers.begin(), numbers.end(),
                       [&](uint32_t number) { return products.rounds(run.calls[number]); });
  };
  facts.tf32 = in_tf32(a_, tf32_a_, calls.a) || in_tf32(b_, tf32_b_, calls.b);
  inputs.pairs = steps ? steps->inputs : pairs_.inputs(calls);
  const bool on_lists = facts.by_element && calls.group == kNoCall && inputs.pairs.size() == a.inputs;
  for (size_t i = 0; i < inputs.pairs.size(); ++i) {
    const auto& [value_a, value_b] = inputs.pairs[i];
    look_at_input(value_a, value_b, on_lists ? list_item(a_.string(a_.inputs(a)[i].place)) : -1, &inputs);
  }
  if (calls.group != kNoCall) look_at_ports(calls, &inputs);
  look_at_forward(calls, &inputs);
  look_inside(calls, &inputs);
  // The operators of aten have the gradient first, then the forward operator's inputs and results.
  if (facts.is_gradient && facts.forward.empty() && facts.values.size() > 1) {
    facts.forward.assign(facts.values.begin() + 1, facts.values.end());
    facts.values.resize(1);
  }
  return inputs;
}

}  // namespace op_tools
