#include "runs/gradient_terms.h"

#include <algorithm>
#include <cmath>

namespace op_tools {
namespace {

// At most as many terms differ as far as that which differs most.
constexpr double kTerms = 64;
constexpr double kRounding = 1.01;  // of the norms themselves

}  // namespace

void GradientTerms::enter_step(int64_t step) {
  if (step <= step_) return;
  step_ = step;
  by_shape_.clear();
}

void GradientTerms::add(ListNumber shape, double norm, double difference) {
  if (!std::isfinite(norm) || !std::isfinite(difference)) return;
  Terms& terms = by_shape_[shape];
  terms.largest = std::max(terms.largest, norm);
  terms.total += norm;
  terms.difference = std::max(terms.difference, difference);
}

std::optional<double> GradientTerms::sum_difference(ListNumber shape, double norm, double unit) const {
  const auto entry = by_shape_.find(shape);
  if (entry == by_shape_.end() || !(norm <= kRounding * entry->second.total)) return std::nullopt;
  return kTerms * (entry->second.difference + unit * entry->second.largest);
}

}  // namespace op_tools
