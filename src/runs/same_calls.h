// Two recordings that have the same calls on the same bits, as most ranks of a large run have: the verdicts follow
// without a search for pairs. Pure functions, any thread.
#pragma once

#include "record/recording.h"
#include "runs/alignment.h"
#include "runs/divergence.h"

namespace op_tools {

// Call by call the same operator, arguments, tensors and hashes, in the same order. False also where that is not known:
// of values that have statistics and no hash, and of steps of optimizers that are compared by parameter.
bool have_same_calls(const Recording& a, const Recording& b);

// The same but for the contents of tensors, and for arguments that are no tensors, as ranks have other process groups:
// the ranks of a program in which no rank does anything of its own.
bool have_same_form(const Recording& a, const Recording& b);

// Of such recordings what align_runs() and find_divergence() find: each call's partner has its own number. The
// divergence is that of the same calls.
Alignment alignment_of_same(const Recording& run);
Divergence divergence_of_same(const Recording& a, const Recording& b, const Alignment& alignment);

}  // namespace op_tools
