// How far the results of two correct runs of a call may be apart, from statistics alone: rounding in the dtype, sums of
// that many elements, and what the operator makes of the differences of its inputs. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// What goes into a call, or into a group of them.
struct CallInputs {
  std::vector<uint32_t> values;  // numbers in Recording::values; of a backward call also those of its forward call
  double difference = 0;         // the largest relative difference of any of them between both runs
  double absolute = 0;           // the largest root of a mean squared difference
  c10::ScalarType coarsest = c10::ScalarType::Undefined;  // of the floating dtypes on both sides, outputs included
  bool sums_products = false;                             // OpTrait::kSumsProducts, or a backward call
  bool jumps = false;                                     // OpTrait::kJumps, or a backward call
  bool divides = false;                                   // OpTrait::kDivides
  bool exponentiates = false;                             // OpTrait::kExponentiates
  bool by_element = false;  // an operator on lists: each output is made of the inputs of its shape
  bool composite = false;   // may round intermediate results to its dtype: torch level, groups
};

// Relative to the norm of `output`. Infinite: there is no limit (an integer result of inputs that differ by rounding).
OP_TOOLS_API double expected_difference(const Recording& run, const CallInputs& inputs, const RecordedValue& output);

// The wider of two dtypes' rounding steps; what is no floating dtype has none.
c10::ScalarType coarser(c10::ScalarType one, c10::ScalarType other);

}  // namespace op_tools
