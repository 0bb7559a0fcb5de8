// A replayed call as a source of OpCall: hooks that are on for this thread see its name, level and id as recorded, and
// its backward as a second OpCall, like those of a live program.
#pragma once

#include <memory>

#include "compare/rerun/replayable_call.h"
#include "hooks/op_call.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "timing/stopwatch.h"

namespace op_tools::replay {

// Whether the aten-level interceptor meets this thread's operators while an object lives. Not around all of replay
// but the runs under test: making inputs and judging are no calls of the replayed program.
class SeenByHooks {
 public:
  explicit SeenByHooks(bool seen);
  ~SeenByHooks();
  SeenByHooks(const SeenByHooks&) = delete;
  SeenByHooks& operator=(const SeenByHooks&) = delete;

 private:
  const bool excluded_before_;
};

// Runs `bound`, made of `inputs`, through the chain of this thread; `again` runs the operator on other arguments.
// Returns the operator's result, throws its exceptions. *milliseconds: how long it took, hooks excluded.
Value run_in_chain(const SavedCall& call, const RunInputs& inputs, BoundCall& bound,
                   const ReplayableCall::Operator& again, Stopwatch& stopwatch, double* milliseconds);

}  // namespace op_tools::replay
