#include "runs/result_limits.h"

#include <algorithm>
#include <cmath>

#include "runs/optimizer_steps.h"

namespace op_tools {

Limits ResultLimits::of(uint32_t value_a, uint32_t value_b, int64_t item, const ComparedInputs& inputs) const {
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

double ResultLimits::limit_of(uint32_t value_a, uint32_t value_b, CallInputs facts) const {
  facts.coarsest = coarser(facts.coarsest, coarser(a_.values[value_a].dtype, b_.values[value_b].dtype));
  if (noise_ == nullptr || !std::isfinite(noise_->of_value[value_a])) {
    return expected_difference(a_, facts, a_.values[value_a]);
  }
  // The growth of the inputs' noise shows how much the call enlarges a difference.
  double noise_in = 0;
  for (const uint32_t value : facts.values) noise_in = std::max(noise_in, noise_at(noise_, value));
  const double growth = noise_in > 0 ? std::max(1.0, facts.difference / noise_in) : 1;
  const bool shown = noise_in > 0 && noise_at(noise_, value_a) > 0;
  if (shown) facts.difference = std::min(facts.difference, 0.0);
  return std::max(expected_difference(a_, facts, a_.values[value_a]),
                  kNoiseFactor * growth * noise_at(noise_, value_a));
}

}  // namespace op_tools
