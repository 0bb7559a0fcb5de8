#include "runs/divergence.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "compare/metrics/tolerance.h"
#include "runs/call_keys.h"
#include "runs/compared_inputs.h"
#include "runs/compared_values.h"
#include "runs/conclusion.h"
#include "runs/gradient_makers.h"
#include "runs/optimizer_steps.h"
#include "runs/result_limits.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

using Kind = ValueDifference::Kind;

// A value that is nearly all rounding (the mean of a normalised channel) differs by any share of itself, which explains
// no later difference. `own`: by how much rounding alone may move it, as a share.
double weight_of(double own, c10::ScalarType dtype) {
  constexpr double kUsualUnits = 4096;
  return own > 0 ? std::min(1.0, kUsualUnits * rounding_of(dtype).unit / own) : 1;
}

// A value that is read again may be farther apart than where it was judged: a gradient was added to it.
constexpr double kReadAgain = 4;

// A copy to the host that the program does not wait for: the recorder may have read it before its elements were there.
bool may_still_arrive(const Recording& run, const RecordedCall& call) {
  const std::string_view scalars = run.string(call.scalars);
  const bool is_to_host = run.strings[run.values[run.outputs(call)[0].value].device] == "cpu";
  // By name; by position it is the first flag of `to`.
  const bool waits = scalars.find("non_blocking\":true") == std::string_view::npos &&
                     scalars.find("]\":true") == std::string_view::npos;
  return is_to_host && !waits;
}

class Finder {
 public:
  Finder(const Recording& a, const Recording& b, const Alignment& alignment, const Noise* noise)
      : a_(a),
        b_(b),
        aligned_(alignment),
        noise_(noise),
        pairs_(a, b, alignment),
        so_far_(a, b),
        inputs_(a, b, alignment, pairs_, noise, &so_far_),
        limits_(a, b, noise),
        read_in_backward_(read_in_backward(a, inputs_.sources_a())) {}

  Divergence find();

 private:
  static void hand_on(const Recording& run, uint32_t call, std::vector<uint32_t>* outputs);  // of calls that only move
  void only_a(uint32_t call);
  void only_b(uint32_t call);
  void one_sided(const Recording& run, uint32_t call, CallVerdict verdict, std::vector<uint32_t>* outputs,
                 uint32_t ComparedCalls::*place);
  void look_at_copy(const Recording& run, const RecordedCall& call, ComparedCalls* row);
  void compare(const Compared& calls);
  bool reads_changed_memory(uint32_t move_a, uint32_t move_b);

  // Of all results of a call. `differs`: some are not equal but for rounding; `unknown`: some have no statistics.
  struct Outputs {
    bool differs = false, unknown = false;
    size_t unwritten = 0;  // how many show memory that was never written
  };
  void look_at_output(uint32_t value_a, uint32_t value_b, const Limits& limits, bool carried, ComparedCalls* row,
                      Outputs* outputs);
  void look_at_steps(const ComparedSteps& steps, bool carried, ComparedCalls* row, Outputs* outputs);
  void name_extra_call(const ComparedInputs& inputs);
  void judge(const Compared& calls, const ComparedInputs& inputs, const ComparedSteps* steps, ComparedCalls* row);

  const Recording &a_, &b_;
  const Alignment& aligned_;
  const Noise* const noise_;
  const ComparedValues pairs_;
  ComparedSoFar so_far_;
  InputComparison inputs_;
  const ResultLimits limits_;
  const std::vector<bool> read_in_backward_;  // by A's value
};

Divergence Finder::find() {
  uint32_t next_b = 0;
  const auto skipped = [](const std::vector<int64_t>& steps, int64_t step) {
    return std::binary_search(steps.begin(), steps.end(), step);
  };
  const auto before_b = [&](uint32_t end) {
    for (; next_b < end; ++next_b) {
      const bool is_compared = so_far_.divergence.row_of_b[next_b] != kNoRow;
      if (aligned_.moves_b[next_b] && !is_compared) hand_on(b_, next_b, &so_far_.made_b);
      if (aligned_.alone_in_b(next_b) && !skipped(aligned_.steps_only_b, b_.calls[next_b].step)) only_b(next_b);
    }
  };
  for (const uint32_t i : behind_makers(a_, inputs_.sources_a(), aligned_, so_far_.modules.order())) {
    if (aligned_.moves_a[i]) {
      const uint32_t partner = aligned_.move_b_of_a[i];
      if (partner != kNoCall) before_b(partner);
      if (partner != kNoCall && reads_changed_memory(i, partner)) {
        compare({{i}, {partner}});
      } else {
        hand_on(a_, i, &so_far_.made_a);
      }
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
  conclude(a_, b_, noise_, &so_far_.divergence);
  return std::move(so_far_.divergence);
}

// Memory that a call wrote in one run and not in the other, though the calls agree: a write through a view that is
// lost. A program that copies such memory to the host shows it in no other call.
bool Finder::reads_changed_memory(uint32_t move_a, uint32_t move_b) {
  const auto is_made = [](const Recording& run, uint32_t call) {
    return run.values[run.inputs(run.calls[call])[0].value].origin == Origin::kCall;
  };
  if (!is_made(a_, move_a) && !is_made(b_, move_b)) return false;
  const Finding born = inputs_.look_at({{move_a}, {move_b}}, nullptr).born;
  return born == Finding::kChangedInput || born == Finding::kFirstInput;
}

void Finder::hand_on(const Recording& run, uint32_t call, std::vector<uint32_t>* outputs) {
  (*outputs)[run.outputs(run.calls[call])[0].value] = (*outputs)[run.inputs(run.calls[call])[0].value];
}

void Finder::only_a(uint32_t call) {
  so_far_.divergence.row_of_a[call] = static_cast<uint32_t>(so_far_.divergence.rows.size());
  one_sided(a_, call, CallVerdict::kOnlyA, &so_far_.made_a, &ComparedCalls::a);
}

void Finder::only_b(uint32_t call) {
  so_far_.divergence.row_of_b[call] = static_cast<uint32_t>(so_far_.divergence.rows.size());
  one_sided(b_, call, CallVerdict::kOnlyB, &so_far_.made_b, &ComparedCalls::b);
}

// Hands on the differences of its inputs.
void Finder::one_sided(const Recording& run, uint32_t number, CallVerdict verdict, std::vector<uint32_t>* outputs,
                       uint32_t ComparedCalls::*place) {
  const RecordedCall& call = run.calls[number];
  ComparedCalls row;
  row.*place = number;
  row.verdict = verdict;
  for (const RecordedUse& use : run.inputs(call)) {
    if (row.via == kNoRow) row.via = (*outputs)[use.value];
  }
  if (row.via != kNoRow) row.source = so_far_.divergence.rows[row.via].source;
  if (row.source == kNoRow) look_at_copy(run, call, &row);
  const auto self = static_cast<uint32_t>(so_far_.divergence.rows.size());
  for (const RecordedUse& use : run.outputs(call)) {
    (*outputs)[use.value] = row.via == kNoRow && row.source == kNoRow ? kNoRow : self;
  }
  so_far_.divergence.rows.push_back(row);
}

// A copy in another place that has other elements than its tensor is wrong by itself: the other run's is no call of a
// row, and a program that reads it as numbers of its language shows it in no other call.
void Finder::look_at_copy(const Recording& run, const RecordedCall& call, ComparedCalls* row) {
  if (!is_moved_copy(run, call) || may_still_arrive(run, call)) return;
  const uint32_t in = run.inputs(call)[0].value, out = run.outputs(call)[0].value;
  if (inputs_.is_unwritten_in(run, in) || inputs_.is_unwritten_in(run, out)) return;
  const ValueDifference difference = difference_of(run, in, run, out);
  if (difference.relative == 0) return;
  const auto self = static_cast<uint32_t>(so_far_.divergence.rows.size());
  row->finding = finding_of(difference);
  row->output_difference = difference.relative;
  row->source = row->seen_in = self;
  (&run == &a_ ? row->value_a : row->value_b) = out;
  so_far_.note_birth(self, self);
}

// The row has a finding where it differs by more than the inputs explain.
void Finder::look_at_output(uint32_t value_a, uint32_t value_b, const Limits& limits, bool carried, ComparedCalls* row,
                            Outputs* outputs) {
  const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
  row->other_dtype = row->other_dtype || difference.other_dtype;
  row->other_shape = row->other_shape || difference.kind == Kind::kShape;
  if (difference.kind == Kind::kSame) return;
  if (difference.kind == Kind::kUnknown) {
    outputs->differs = outputs->differs || carried;
    outputs->unknown = true;
    return;
  }
  ComparedCalls calls;
  calls.output_difference = difference.relative;
  calls.limit = limits.limit;
  if (row->value_a == kNoCall || calls.share() > row->share()) {
    row->output_difference = calls.output_difference;
    row->limit = calls.limit;
    row->noise = noise_at(noise_, value_a);
    row->value_a = value_a, row->value_b = value_b;
  }
  outputs->differs = outputs->differs || difference.relative > limits.own;
  if (difference.kind == Kind::kNumbers && difference.relative <= limits.limit) {
    so_far_.usual[value_a] = static_cast<float>(std::max(limits.own, kReadAgain * difference.relative));
    const double explained = difference.relative * weight_of(limits.own, a_.values[value_a].dtype);
    if (!carried && std::isfinite(explained)) so_far_.explained = std::max(so_far_.explained, explained);
    return;
  }
  const Finding finding = finding_of(difference);
  row->finding = row->finding == Finding::kNone ? finding : std::min(row->finding, finding);
}

void Finder::look_at_steps(const ComparedSteps& steps, bool carried, ComparedCalls* row, Outputs* outputs) {
  for (const StepResult& result : steps.results) {
    if (result.value_a != kNoCall && result.value_b != kNoCall) {
      const double limit = std::max(result.limit, kNoiseFactor * noise_at(noise_, result.value_a));
      look_at_output(result.value_a, result.value_b, {limit, result.own}, carried, row, outputs);
    } else if (row->finding == Finding::kNone) {
      outputs->differs = true;
      row->finding = Finding::kExtraCall;
      row->value_a = result.value_a, row->value_b = result.value_b;
    }
  }
}

// Calls of a single run changed the results of a call that both make.
void Finder::name_extra_call(const ComparedInputs& inputs) {
  ComparedCalls& row = so_far_.divergence.rows[inputs.extra];
  if (row.finding != Finding::kNone || row.source != kNoRow) return;
  row.finding = Finding::kExtraCall;
  row.source = inputs.extra;
  row.seen_in = static_cast<uint32_t>(so_far_.divergence.rows.size());
  row.output_difference = inputs.extra_difference;
  row.value_a = inputs.value_a, row.value_b = inputs.value_b;
  so_far_.note_birth(inputs.extra, row.seen_in);
}

void Finder::judge(const Compared& calls, const ComparedInputs& inputs, const ComparedSteps* steps,
                   ComparedCalls* row) {
  const RecordedCall &a = a_.calls[calls.a.back()], &b = b_.calls[calls.b.back()];
  const auto self = static_cast<uint32_t>(so_far_.divergence.rows.size());
  const bool carried = inputs.carried != kNoRow;
  Outputs judged;
  ValuePairs outputs;
  if (steps) {
    look_at_steps(*steps, carried, row, &judged);
    for (const StepResult& result : steps->results) {
      if (result.value_a != kNoCall && result.value_b != kNoCall) outputs.emplace_back(result.value_a, result.value_b);
    }
  } else {
    outputs = pairs_.outputs(calls);
    const bool in_order = calls.group == kNoCall && outputs.size() == a.outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& [value_a, value_b] = outputs[i];
      if (inputs_.is_unwritten(value_a, value_b)) {
        ++judged.unwritten;
        continue;
      }
      if (pairs_.is_guess(calls, value_a, value_b)) continue;
      const int64_t item = in_order ? list_item(a_.string(a_.outputs(a)[i].place)) : -1;
      look_at_output(value_a, value_b, limits_.of(value_a, value_b, item, inputs), carried, row, &judged);
    }
  }
  if ((a.error == 0) != (b.error == 0)) row->finding = Finding::kError;
  const bool grew = row->finding != Finding::kNone;
  const bool matters = judged.differs || grew;
  if (matters && inputs.extra != kNoRow) name_extra_call(inputs);
  if (inputs.born != Finding::kNone && matters) {
    row->finding = inputs.born;
    row->value_a = inputs.value_a, row->value_b = inputs.value_b;
  } else if (inputs.carried != kNoRow) {
    row->finding = Finding::kNone;
    row->verdict = matters ? CallVerdict::kCarried : CallVerdict::kHealed;
    row->via = inputs.carried;
    row->source = so_far_.divergence.rows[inputs.carried].source;
  } else if (grew && row->finding == Finding::kNumbers && (a.random != 0 || b.random != 0)) {
    row->finding = Finding::kRandom;
  } else if (!grew && (judged.unknown || (judged.unwritten > 0 && judged.unwritten == outputs.size()))) {
    row->verdict = CallVerdict::kNotCompared;
  }
  if (row->finding != Finding::kNone) {
    row->verdict = CallVerdict::kBorn;
    row->source = row->seen_in = self;
    so_far_.note_birth(self, self);
  }
  const bool hands_on = row->verdict == CallVerdict::kBorn || row->verdict == CallVerdict::kCarried;
  for (const auto& [value_a, value_b] : outputs) {
    const ValueDifference difference = difference_of(a_, value_a, b_, value_b);
    const bool same = difference.kind == Kind::kSame;
    const bool is_term =
        a.phase == Phase::kBackward && !read_in_backward_[value_a] && (same || difference.kind == Kind::kNumbers);
    if (is_term) so_far_.terms.add(a_.values[value_a].shape, a_.values[value_a].norm, hands_on ? 0 : difference.norm);
    so_far_.made_a[value_a] = so_far_.made_b[value_b] = hands_on && !same ? self : kNoRow;
  }
}

void Finder::compare(const Compared& calls) {
  ComparedCalls row;
  row.a = calls.a.back(), row.b = calls.b.back();
  row.group = calls.group;
  const RecordedCall &a = a_.calls[row.a], &b = b_.calls[row.b];
  so_far_.terms.enter_step(a.step);
  row.other_op = calls.group != kNoCall || plain_name(a_.string(a.op)) != plain_name(b_.string(b.op));
  row.other_scalars = !row.other_op && a_.string(a.scalars) != b_.string(b.scalars);
  std::optional<ComparedSteps> steps;
  if (calls.group != kNoCall && aligned_.groups[calls.group].is_optimizer_step) {
    steps = compare_steps(a_, calls.a, b_, calls.b);
  } else if (calls.group == kNoCall) {
    steps = compare_module_steps(a_, row.a, b_, row.b);
  }
  const ComparedSteps* const compared_steps = steps ? &*steps : nullptr;
  const ComparedInputs inputs = inputs_.look_at(calls, compared_steps);
  row.input_difference = inputs.facts.difference;
  judge(calls, inputs, compared_steps, &row);
  const auto self = static_cast<uint32_t>(so_far_.divergence.rows.size());
  const bool hands_on = row.verdict == CallVerdict::kBorn || row.verdict == CallVerdict::kCarried;
  so_far_.modules.judged(row.a, row.output_difference, hands_on ? self : kNoRow);
  for (const uint32_t call : calls.a) so_far_.divergence.row_of_a[call] = self;
  for (const uint32_t call : calls.b) so_far_.divergence.row_of_b[call] = self;
  so_far_.divergence.rows.push_back(row);
}

}  // namespace

Divergence find_divergence(const Recording& a, const Recording& b, const Alignment& alignment, const Noise* noise) {
  return Finder(a, b, alignment, noise).find();
}

}  // namespace op_tools
