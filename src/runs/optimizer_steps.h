// Steps of optimizers in recordings: which calls make a step, and the inputs of a parameter's new value. An optimizer
// has several forms (a call for each parameter, for a list of them, a single fused call) that compute the same in other
// calls: those of two runs are compared by parameter. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "record/recording.h"
#include "runs/call_groups.h"

namespace op_tools {

struct OptimizerStep {
  CallNumbers calls;
  bool lists = false, fused = false;  // some of its calls are on lists of tensors, or fused

  bool same_form(const OptimizerStep& other) const { return lists == other.lists && fused == other.fused; }
};

// By training step and thread, in their order: calls of a single line, without gradients, that write a parameter.
std::map<std::pair<int64_t, uint32_t>, std::vector<OptimizerStep>> optimizer_steps(const Recording& run);

// Which item of a list of tensors stands at this place: args[1][2] -> 2; -1: it is in no list.
int64_t list_item(std::string_view place);

// Two values after a step. `limit`: how far they may be apart, as a share of their norms; `own`: if nothing that goes
// into the step differed.
struct StepResult {
  uint32_t value_a = kNoCall, value_b = kNoCall;  // kNoCall: that run does not write it
  double limit = 0, own = 0;
};

struct ComparedSteps {
  ValuePairs inputs;                // gradients, states and parameters before the step
  std::vector<StepResult> results;  // parameters and states after it
};

// Two forms of a step. The difference of the gradients explains as much of a parameter's change as the formula makes of
// it: a quotient of two numbers that are rounding alone has any sign.
ComparedSteps compare_steps(const Recording& run_a, const CallNumbers& a, const Recording& run_b, const CallNumbers& b);

// Two calls of optimizers as recordings of modules have them, by parameter. Where the steps agree along their
// gradients, their moves for gradients that are rounding alone explain as much of a parameter's new value as a step
// can move. Nothing: they are no such calls, or a recording does not say by how much they moved the parameters.
std::optional<ComparedSteps> compare_module_steps(const Recording& run_a, uint32_t a, const Recording& run_b,
                                                  uint32_t b);

// Of the gradients and states that two forms, or two runs, of a step read: the two values of a parameter that are
// farthest apart, as a share; beside the largest of the step a small value counts less.
struct ReadBySteps {
  uint32_t value_a = kNoCall, value_b = kNoCall;  // kNoCall: all are equal
  double difference = 0;
};
// `small`: small_gradient() of the runs.
ReadBySteps farthest_gradient(const Recording& run_a, const CallNumbers& a, const Recording& run_b,
                              const CallNumbers& b, double small);

// A gradient that is a sum of zero is rounding alone. Beside the largest of its step a gradient of this share is
// nothing. Reads all values of the run.
double small_gradient(const Recording& run);
// The largest rounding step of a floating value. Reads all values of the run.
double coarsest_unit(const Recording& run);

// The most by which the step of an optimizer can move a parameter's two new values apart, however the update's elements
// changed their signs; as a share of the norm. `before`: its values before the step.
double most_of_step(const Recording& run_a, uint32_t before_a, uint32_t after_a, const Recording& run_b,
                    uint32_t before_b, uint32_t after_b);

}  // namespace op_tools
