#include "runs/compared_values.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "runs/value_difference.h"

namespace op_tools {
namespace {

int64_t of_shape(const Recording& run, const std::vector<uint32_t>& values, c10::ArrayRef<int64_t> shape) {
  return std::count_if(values.begin(), values.end(),
                       [&](uint32_t value) { return run.list(run.values[value].shape) == shape; });
}

}  // namespace

ComparedValues::ComparedValues(const Recording& a, const Recording& b, const Alignment& alignment)
    : a_(a), b_(b), aligned_(alignment) {
  if (!alignment.groups.empty()) readers_a_ = last_readers(a), readers_b_ = last_readers(b);
}

// By place in the argument list where both have the same places, else by the tensors' properties.
ValuePairs ComparedValues::paired_uses(c10::ArrayRef<RecordedUse> a, c10::ArrayRef<RecordedUse> b) const {
  ValuePairs pairs;
  if (a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) pairs.emplace_back(a[i].value, b[i].value);
    return pairs;
  }
  std::vector<uint32_t> left_a;
  std::map<std::string_view, uint32_t> by_place;
  for (const RecordedUse& use : b) by_place.emplace(b_.string(use.place), use.value);
  for (const RecordedUse& use : a) {
    const auto same = by_place.find(a_.string(use.place));
    if (same == by_place.end()) {
      left_a.push_back(use.value);
    } else {
      pairs.emplace_back(use.value, same->second);
      by_place.erase(same);
    }
  }
  std::vector<uint32_t> left_b;
  for (const auto& [place, value] : by_place) left_b.push_back(value);
  const ValuePairs more = pair_values(a_, left_a, b_, left_b);
  pairs.insert(pairs.end(), more.begin(), more.end());
  return pairs;
}

ValuePairs ComparedValues::inputs(const Compared& calls) const {
  if (calls.group == kNoCall) return paired_uses(a_.inputs(a_.calls[calls.a[0]]), b_.inputs(b_.calls[calls.b[0]]));
  ValuePairs pairs = pair_values(a_, ports_a(calls).inputs, b_, ports_b(calls).inputs);
  // Which input is which is a guess by shape where neither value nor maker says so.
  std::erase_if(pairs, [&](const auto& pair) {
    const RecordedValue &a = a_.values[pair.first], &b = b_.values[pair.second];
    const bool is_made = a.origin == Origin::kCall && b.origin == Origin::kCall && a.output == b.output &&
                         aligned_.b_of_a[a.producer] == b.producer;
    return !is_made && difference_of(a_, pair.first, b_, pair.second).relative > kSameResult;
  });
  return pairs;
}

bool ComparedValues::is_guess(const Compared& calls, uint32_t value_a, uint32_t value_b) const {
  if (calls.group == kNoCall || a_.values[value_a].name != 0) return false;
  const bool are_read = readers_a_.any[value_a] != kNoCall && readers_b_.any[value_b] != kNoCall;
  if (!are_read || difference_of(a_, value_a, b_, value_b).relative <= kSameResult) return false;
  const bool is_forward = a_.calls[calls.a.back()].phase == Phase::kForward;
  return !is_forward || ports_a(calls).outputs.size() > 1 || ports_b(calls).outputs.size() > 1;
}

bool ComparedValues::are_exchanged(const Compared& group, uint32_t value_a, uint32_t value_b) const {
  const auto agree = [&](uint32_t value_of_a, uint32_t other) {
    const ValueDifference difference = difference_of(a_, value_of_a, b_, other);
    return difference.kind != ValueDifference::Kind::kUnknown && difference.relative <= kSameResult;
  };
  const std::vector<uint32_t> of_a = ports_a(group).outputs, of_b = ports_b(group).outputs;
  return std::any_of(of_b.begin(), of_b.end(), [&](uint32_t other) { return agree(value_a, other); }) &&
         std::any_of(of_a.begin(), of_a.end(), [&](uint32_t value_a) { return agree(value_a, value_b); });
}

ValuePairs ComparedValues::outputs(const Compared& calls) const {
  if (calls.group == kNoCall) return paired_uses(a_.outputs(a_.calls[calls.a[0]]), b_.outputs(b_.calls[calls.b[0]]));
  const std::vector<uint32_t> of_a = ports_a(calls).outputs, of_b = ports_b(calls).outputs;
  ValuePairs pairs = pair_values(a_, of_a, b_, of_b);
  if (a_.calls[calls.a.back()].phase != Phase::kBackward) return pairs;
  // Formulas of a gradient may have it in other parts, which the engine adds up: the reader of the sum is compared.
  std::erase_if(pairs, [&](const auto& pair) {
    const auto shape = a_.list(a_.values[pair.first].shape);
    const bool other_parts = of_shape(a_, of_a, shape) != of_shape(b_, of_b, shape) ||
                             (readers_a_.any[pair.first] == kNoCall) != (readers_b_.any[pair.second] == kNoCall);
    return other_parts && difference_of(a_, pair.first, b_, pair.second).relative > kSameResult;
  });
  return pairs;
}

}  // namespace op_tools
