// What the results of two runs say of the verdicts on their calls. Pure functions, any thread.
#pragma once

#include "record/recording.h"
#include "runs/divergence.h"
#include "runs/noise.h"

namespace op_tools {

// After all calls were looked at: forgives what was named only because one run has other calls than the other one, if
// all results are equal, or what it was handed on to is; names another loss, gradient or parameter where no call was
// found; finds the first row of each step; and asks whether enough was looked at: most rows say nothing where they were
// not compared, or are calls that one run makes and whose results go into no call that both make.
void conclude(const Recording& a, const Recording& b, const Noise* noise, Divergence* judged);

}  // namespace op_tools
