// The program's side of a call that a tool runs again, from before() to after(), in the program's thread: for the state
// of a hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "calls/random_state.h"
#include "compare/rerun/replayable_call.h"
#include "hooks/hook.h"
#include "hooks/op_call.h"

namespace op_tools {

struct OP_TOOLS_API LiveCall : HookState {
  // In before(): takes the inputs, and waits for their devices. False: an error of the program's came to light;
  // nothing else is set then, and rethrow_stop() stops the program after its call. `tool`: whose message it is.
  bool take_inputs(std::string_view tool, OpCall& call);
  void rethrow_stop() const;  // in after()

  // In after(), by input tensor: the schema or the version counter shows a write.
  std::vector<bool> written_inputs(const ReplayableCall& replayable) const;

  std::vector<at::Tensor> live;  // the program's input tensors
  std::unique_ptr<RandomWatch>
      watch;  // made last, so that nothing of ours comes between the generator's state and the call

 private:
  std::vector<int64_t> versions_;  // before the call
  std::exception_ptr stop_;
};

// Of the inputs: a device other than the CPU, if there is any.
OP_TOOLS_API std::string device_of_inputs(const ReplayableCall& call);

}  // namespace op_tools
