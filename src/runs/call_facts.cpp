#include "runs/call_facts.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "hooks/module_path.h"
#include "hooks/op_traits.h"
#include "runs/call_keys.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// The gradient of an operator, as an operator of aten's: mse_loss_backward, _softmax_backward_data.
bool is_gradient_formula(const RecordedCall& call, std::string_view operator_name) {
  return call.level == Level::kAten && operator_name.find("_backward") != std::string_view::npos;
}

// relu makes zeros of elements below its threshold.
std::optional<int64_t> zeros_of_relu(const Recording& run, const CallsById& forward, const RecordedCall& call) {
  const auto forward_call = forward.find(call.forward_id);
  if (call.phase != Phase::kBackward || call.forward_id == 0 || forward_call == forward.end()) return std::nullopt;
  const RecordedCall& of_call = run.calls[forward_call->second];
  if (plain_name(run.string(of_call.op)) != "relu" || of_call.outputs == 0) return std::nullopt;
  return run.values[run.outputs(of_call)[0].value].zero;
}

}  // namespace

bool may_be_gradient(const RecordedValue& value) {
  return value.origin == Origin::kUnknown || value.origin == Origin::kGradient;
}

double largest_gradient(const Recording& run) {
  std::vector<bool> is_read(run.values.size(), false);
  double largest = 0;
  for (const RecordedCall& call : run.calls) {
    if (call.phase != Phase::kBackward) continue;
    for (const RecordedUse& use : run.inputs(call)) is_read[use.value] = true;
  }
  for (uint32_t value = 0; value < run.values.size(); ++value) {
    const RecordedValue& input_value = run.values[value];
    const bool is_leaf = input_value.origin == Origin::kCall && input_value.producer < run.calls.size() &&
                         run.calls[input_value.producer].phase == Phase::kBackward && !is_read[value];
    if (is_leaf || may_be_gradient(input_value)) largest = std::max(largest, rms_of(run, input_value));
  }
  return largest;
}

CallsById forward_calls(const Recording& run) {
  CallsById calls;
  for (uint32_t i = 0; i < run.calls.size(); ++i) {
    if (run.calls[i].phase == Phase::kForward) calls.emplace(run.calls[i].id, i);
  }
  return calls;
}

bool may_have_jumped(const Recording& run_a, const CallsById& forward_a, const RecordedCall& a, const Recording& run_b,
                     const CallsById& forward_b, const RecordedCall& b) {
  const std::optional<int64_t> zeros_a = zeros_of_relu(run_a, forward_a, a),
                               zeros_b = zeros_of_relu(run_b, forward_b, b);
  return !zeros_a || !zeros_b || *zeros_a < 0 || *zeros_a != *zeros_b;
}

CallInputs facts_of(const Recording& run, const CallNumbers& calls, bool is_group) {
  CallInputs facts;
  facts.composite = is_group;
  for (const uint32_t number : calls) {
    const RecordedCall& call = run.calls[number];
    const std::string_view base = base_name(run.string(call.op));
    const bool is_backward = call.phase == Phase::kBackward && call.level == Level::kTorch;
    const bool is_any = is_module_call(run.string(call.op));  // of any operators
    facts.is_gradient = facts.is_gradient || (is_backward && !is_any) || is_gradient_formula(call, base);
    facts.sums_products = facts.sums_products || is_any || has_trait(base, OpTrait::kSumsProducts);
    const OpTrait jumps = is_backward ? OpTrait::kGradientJumps : OpTrait::kJumps;
    facts.jumps = facts.jumps || is_any || has_trait(base, jumps);
    facts.selects = !is_group && !is_backward && has_trait(base, OpTrait::kSelects);
    facts.multiplies = facts.multiplies || has_trait(base, OpTrait::kMultiplies);
    const bool may_normalize = is_any && !is_backward;
    facts.normalizes = facts.normalizes || may_normalize || has_trait(base, OpTrait::kNormalizes);
    if (const OpFamily* const quotient = family_of(base, OpTrait::kDivides)) {
      facts.divides = true;
      facts.divisor_from = quotient->place;
    }
    facts.adds_term = !is_group && !is_backward && has_trait(base, OpTrait::kAddsTerm);
    facts.exponentiates = facts.exponentiates || has_trait(base, OpTrait::kExponentiates);
    facts.by_element = facts.by_element || is_foreach(base) || has_trait(base, OpTrait::kStepsParameters);
    facts.composite = facts.composite || call.level == Level::kTorch;
  }
  return facts;
}

}  // namespace op_tools
