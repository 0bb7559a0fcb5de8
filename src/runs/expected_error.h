// How far the results of two correct runs of a call may be apart, from statistics alone: rounding in the dtype, sums of
// that many elements, and the operator's effect on the differences of its inputs. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// The inputs of a call, or of a group of them.
struct CallInputs {
  std::vector<uint32_t> values;   // numbers in Recording::values
  std::vector<uint32_t> forward;  // of a backward call: those of its forward call, inputs and outputs
  double forward_result = 0;      // of a backward call whose forward call gave a single element: its size; else 0
  double difference = 0;          // the largest relative difference of any of them between both runs
  double absolute = 0;            // the largest root of a mean squared difference
  c10::ScalarType coarsest = c10::ScalarType::Undefined;  // of the floating dtypes on both sides, outputs included
  bool is_gradient = false;     // a backward call: its results are linear in the gradients that come in
  bool sums_products = false;   // OpTrait::kSumsProducts, or of any operators
  bool jumps = false;           // OpTrait::kJumps, or kGradientJumps of the forward call
  bool may_have_jumped = true;  // false: statistics of its forward call show that no element did
  bool selects = false;         // OpTrait::kSelects; not of gradients and groups
  bool multiplies = false;      // OpTrait::kMultiplies
  bool normalizes = false;      // OpTrait::kNormalizes
  bool divides = false;         // OpTrait::kDivides
  int divisor_from = 0;         // of kDivides: that many inputs stand before its divisor
  bool adds_term = false;       // OpTrait::kAddsTerm; not of gradients and groups
  bool exponentiates = false;   // OpTrait::kExponentiates
  bool by_element = false;      // an operator on lists: each output is made of the inputs of its shape
  bool tf32 = false;            // on a side float32 factors are rounded to TF32
  bool composite = false;       // may round intermediate results to its dtype: torch level, groups

  // The same call with inputs that do not differ.
  CallInputs without_differences() const {
    CallInputs same = *this;
    same.difference = same.absolute = 0;
    return same;
  }
};

// Relative to the norm of `output`. Infinite: there is no limit (an integer result of inputs that differ by rounding).
OP_TOOLS_API double expected_difference(const Recording& run, const CallInputs& inputs, const RecordedValue& output);

// How many times larger than the smallest element the elements usually are.
double spread_of(const Recording& run, const RecordedValue& value);

// The wider of two dtypes' rounding steps; other dtypes have none.
c10::ScalarType coarser(c10::ScalarType type, c10::ScalarType other);

}  // namespace op_tools
