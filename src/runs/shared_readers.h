// Calls without partners that stand for each other by their readers: fused operators whose results differ belong
// together, too. Pure functions, any thread.
#pragma once

#include "record/recording.h"
#include "runs/alignment.h"
#include "runs/call_groups.h"

namespace op_tools {

// Those whose results are the same argument of two calls that are paired. `readers`: calls of A.
CallPairs read_by_pairs(const Recording& a, const Recording& b, const Alignment& pairs, const CallNumbers& readers);

// Takes calls into a group that nothing reads but calls of the group, where both runs have such calls.
void absorb_into_groups(const Recording& a, const Recording& b, Alignment* alignment);

}  // namespace op_tools
