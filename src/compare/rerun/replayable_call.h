// A call as it was before it ran, so that it can be run again: its inputs on the CPU, and the program's state as far as
// an operator can see it. Made of a live call in before(), on the program's thread, or of a saved call; run() from any
// thread, as often as wanted. Live judging and replay get their references and float64 runs here and nowhere else.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "calls/snapshot.h"
#include "compare/rerun/run_outcome.h"
#include "compare/rerun/variant_inputs.h"
#include "hooks/op_call.h"

namespace op_tools {

// The call's arguments with every device that they name being the CPU.
struct ArgumentsOnCpu {
  CallArguments arguments;
  bool names_device = false;             // a device stands among the arguments
  std::optional<c10::Device> elsewhere;  // a device other than the CPU (nor "meta")
};
// `base_name`: of the operator; `device`: of the call's tensors.
OP_TOOLS_API ArgumentsOnCpu arguments_on_cpu(const CallArguments& call, std::string_view base_name, c10::Device device);

OP_TOOLS_API bool on_several_devices(const std::vector<TensorMeta>& tensors);

class OP_TOOLS_API ReplayableCall {
 public:
  // Runs the operator; throws its exceptions. Any thread.
  using Operator = std::function<Value(const CallArguments&)>;

  // The known parts of a saved call. Tensors on the CPU.
  struct Saved {
    Level level = Level::kTorch;
    std::string name;
    CallArguments arguments;
    bool grad_enabled = true;
    bool inference_mode = c10::InferenceMode::is_enabled();
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    std::optional<c10::ScalarType> autocast;
    std::vector<bool> written_inputs;
    Operator run;
  };

  explicit ReplayableCall(OpCall& call);
  explicit ReplayableCall(Saved call);
  // The same call of other inputs, in the devices of the first: those for which `copy_of` gives a tensor (on the CPU).
  // Of a live call only.
  ReplayableCall with_inputs(const std::function<at::Tensor(const at::Tensor&)>& copy_of) const;
  // The same operator with other arguments, likewise: those of inputs(), some of them changed. Tensors that are not
  // among its own (on the CPU) are put on the call's device.
  ReplayableCall with_arguments(Value args, Value kwargs) const;

  // `output_gradients`, by tensor of the result: then the run also goes backward. `random_state` (CPU generator):
  // the operator draws from there. The CPU's own random stream stays where it is. `beside_program`: the
  // program's thread may draw while this runs; only for calls that draw nothing.
  RunOutcome run(const RunVariant& variant, const std::vector<at::Tensor>* output_gradients = nullptr,
                 const at::Tensor* random_state = nullptr, bool beside_program = false) const;

  // The same where the program ran the call (RunVariant::Kind::kOnDevice), from its own device's streams of random
  // numbers: `random_states`, Dict {device: state before the call} of the generators that moved. In the program's
  // thread; the streams stay where they are. Of a live call only.
  RunOutcome run_on_device(const RunVariant& variant, const Value& random_states,
                           const std::vector<at::Tensor>* output_gradients = nullptr) const;

  // The backward pass of a run that went forward; its graph is used up.
  RunOutcome backward(RunOutcome forward, const RunVariant& variant,
                      const std::vector<at::Tensor>& output_gradients) const;

  // Of a live call: the contents of the files.
  const Snapshot& inputs() const { return inputs_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // the inputs, by tensor index
  size_t bytes() const { return inputs_.bytes; }
  const std::optional<c10::ScalarType>& autocast() const { return autocast_; }
  bool names_device() const { return names_device_; }  // a device stands among the arguments
  bool all_on_cpu() const { return all_on_cpu_; }
  // Inside a functorch transform, which no run of ours is in.
  bool in_transform() const { return keys_.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode); }
  // Its tensors and generators are; our runs on the CPU have all of them in a single place.
  bool is_on_several_devices() const;
  bool names_absent_device() const;  // a device that this process does not have
  bool wants_gradients() const { return wants_gradients_; }
  // Functions of the program's own packed what autograd saved for the backward: it may read other numbers there.
  bool has_packed_tensors() const { return has_packed_tensors_; }
  static constexpr const char* kPackedTensors =
      "functions of the program's own (saved_tensors_hooks) packed the tensors that this backward reads";
  const std::vector<bool>& written_inputs() const { return written_; }
  // See reads_what_it_writes(). Our runs read copies of these.
  const std::vector<bool>& overlapping_inputs() const { return overlapping_; }

 private:
  void take(CallArguments as_given);
  std::string why_not() const;
  void with_program_state(const RunVariant& variant, const std::function<void()>& work) const;

  const Level level_;
  const std::string name_;
  const bool grad_enabled_;
  const bool inference_mode_;
  const c10::impl::LocalDispatchKeySet keys_;
  std::optional<c10::ScalarType> autocast_;  // its dtype where it is on for the call's device
  bool names_device_ = false, all_on_cpu_ = true, wants_gradients_ = false;
  bool has_packed_tensors_ = false;
  bool in_python_ = false;     // the operator may run Python code
  std::vector<bool> written_;  // by input tensor: known before the call
  std::vector<bool> overlapping_;
  Snapshot inputs_;
  CallArguments arguments_;           // the copies, devices among the arguments being the CPU
  CallArguments as_given_;            // the copies, devices among the arguments as the program named them
  std::vector<c10::Device> devices_;  // of the program's tensors
  c10::Device device_ = c10::kCPU;    // that is not the CPU, if there is any
  std::vector<at::Tensor> tensors_;
  Operator run_;  // empty: the call cannot be run again
};

}  // namespace op_tools
