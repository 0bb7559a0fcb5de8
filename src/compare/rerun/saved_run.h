// The contents of the files of a call that a tool ran again: its inputs as they were before it ran, and what a run of
// it gave. For OpAutoCompare (failures) and OpInvariance (findings); one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "base/export.h"
#include "calls/saved_call.h"
#include "compare/rerun/replayable_call.h"
#include "compare/rerun/run_outcome.h"

namespace op_tools {

inline Value list_of(const std::vector<at::Tensor>& tensors) {
  return make_list(Values(tensors.begin(), tensors.end()));
}

struct SavedRun {
  // `random_state`: Dict {device: state before the call}; None: the call drew nothing. Of a live call only.
  OP_TOOLS_API SavedRun(const ReplayableCall& replayable, const CallMeta& meta, const Value& random_state);
  // Of a run that returned: its result, and the inputs that it changed.
  OP_TOOLS_API void add_results(const ReplayableCall& replayable, const RunOutcome& run);
  OP_TOOLS_API void add_backward(const std::vector<at::Tensor>& output_gradients,
                                 const std::vector<at::Tensor>& gradients, bool incomplete);

  SavedCall call;
  size_t bytes = 0;  // of its tensors
};

}  // namespace op_tools
