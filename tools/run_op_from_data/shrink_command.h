// run_op_from_data --shrink: the smallest form of a call that still fails on a device. A process makes attempt
// after attempt; an operator that crashes or hangs ends it. A journal in the folder says which attempt that was, so a
// process that is started again with the same arguments makes the same attempts, takes their outcomes from the journal,
// and goes on.
#pragma once

#include "run_op_from_data/arguments.h"
#include "run_op_from_data/replay.h"

namespace op_tools::replay {

// Exit status: kDiffers: the folder has a call that fails (its path is in the JSON report); kAgrees: the call is
// right as it is; kIncomplete: it cannot be run. Throws Error for a call that cannot be read, or a folder that cannot
// be written.
int shrink_command(const ReplayOptions& options, PythonCaller* caller);

}  // namespace op_tools::replay
