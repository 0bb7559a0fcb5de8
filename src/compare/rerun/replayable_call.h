// A call as it was before it ran, kept so that it can be run again: its inputs on the CPU, and the program's state as
// far as an operator can see it. Made in before(), on the program's thread; run() from any thread, as often as wanted.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calls/snapshot.h"
#include "compare/rerun/run_outcome.h"
#include "hooks/op_call.h"

namespace op_tools {

class ReplayableCall {
 public:
  explicit ReplayableCall(OpCall& call);

  // `output_gradients`, by tensor of the result: then the run also goes backward. `random_state` (CPU generator): what
  // the operator draws, it draws from there. The CPU's own random stream stays where it is.
  RunOutcome run(const RunVariant& variant, const std::vector<at::Tensor>* output_gradients = nullptr,
                 const at::Tensor* random_state = nullptr) const;

  // The backward pass of a run that went forward; its graph is used up.
  RunOutcome backward(RunOutcome forward, const RunVariant& variant,
                      const std::vector<at::Tensor>& output_gradients) const;

  const Snapshot& inputs() const { return inputs_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // the inputs, by tensor index
  size_t bytes() const { return inputs_.bytes; }
  const std::optional<c10::ScalarType>& autocast() const { return autocast_; }
  bool names_device() const { return names_device_; }  // a device stands among the arguments
  bool all_on_cpu() const { return all_on_cpu_; }
  // Inside a functorch transform, which no run of ours is in.
  bool in_transform() const { return keys_.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode); }
  bool wants_gradients() const { return wants_gradients_; }

 private:
  void as_the_program(const RunVariant& variant, const std::function<void()>& work) const;

  const Level level_;
  const std::string name_;
  const bool grad_enabled_;
  const c10::impl::LocalDispatchKeySet keys_;
  std::optional<c10::ScalarType> autocast_;  // its dtype where it is on for the call's device
  bool names_device_ = false, all_on_cpu_ = true, wants_gradients_ = false;
  std::vector<bool> written_;  // by input tensor: known before the call
  Snapshot inputs_;
  Value args_, kwargs_;  // the copies, devices among the arguments being the CPU
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<const OpRunner> runner_;
};

}  // namespace op_tools
