// The verdicts on calls in the light of the results of two runs. Pure functions, any thread.
#pragma once

#include "record/recording.h"
#include "runs/divergence.h"
#include "runs/noise.h"

namespace op_tools {

// After all calls were looked at: forgives calls that were named only because the runs have different calls, if
// all results are equal, or their successors are; names another loss, gradient or parameter where no call was
// found; finds the first row of each step; and asks whether enough was looked at: most rows say nothing where they were
// not compared, or are calls of a single run whose results go into no call that both make.
void conclude(const Recording& a, const Recording& b, const Noise* noise, Divergence* judged);

// Of runs in which nothing was named: most rows say something.
bool is_enough(const Recording& a, const Recording& b, const Divergence& judged);

}  // namespace op_tools
