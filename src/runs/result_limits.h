// How far the results of a pair of calls may be apart, given its inputs. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "record/recording.h"
#include "runs/compared_inputs.h"
#include "runs/noise.h"

namespace op_tools {

// As a share of the result's norm: for the inputs that there are, and for inputs that do not differ.
struct Limits {
  double limit = 0, own = 0;
};

class ResultLimits {
 public:
  // All of them outlive the object.
  ResultLimits(const Recording& a, const Recording& b, const Noise* noise) : a_(a), b_(b), noise_(noise) {}

  // `item`: of an operator on lists, in which place the result stands; -1: in none.
  Limits of(uint32_t value_a, uint32_t value_b, int64_t item, const ComparedInputs& inputs) const;

 private:
  double limit_of(uint32_t value_a, uint32_t value_b, CallInputs facts) const;

  const Recording &a_, &b_;
  const Noise* const noise_;
};

}  // namespace op_tools
