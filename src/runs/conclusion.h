// What the results of two runs say of the verdicts on their calls. Pure functions, any thread.
#pragma once

#include "record/recording.h"
#include "runs/divergence.h"
#include "runs/noise.h"

namespace op_tools {

// After all calls were looked at: forgives what was named only because one run has other calls than the other one, if
// all results are equal; names another loss, gradient or parameter where no call was found; and finds the first row of
// each step.
void conclude(const Recording& a, const Recording& b, const Noise* noise, Divergence* judged);

}  // namespace op_tools
