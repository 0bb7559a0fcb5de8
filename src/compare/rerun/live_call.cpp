#include "compare/rerun/live_call.h"

#include "base/stop_program.h"
#include "compare/rerun/program_errors.h"
#include "hooks/written_inputs.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

bool LiveCall::take_inputs(std::string_view tool, OpCall& call) {
  live = flatten_tensors(make_tuple({call.args(), call.kwargs()}));
  try {
    wait_for_program(tool, live, "before", call);
  } catch (const StopProgram&) {
    stop_ = std::current_exception();
    return false;
  }
  for (const at::Tensor& tensor : live) versions_.push_back(version_of(tensor));
  return true;
}

void LiveCall::rethrow_stop() const {
  if (stop_) std::rethrow_exception(stop_);
}

std::vector<bool> LiveCall::written_inputs(const ReplayableCall& replayable) const {
  const std::vector<bool>& known = replayable.written_inputs();
  std::vector<bool> written;
  for (size_t i = 0; i < live.size(); ++i) {
    written.push_back((i < known.size() && known[i]) || version_of(live[i]) != versions_[i]);
  }
  return written;
}

std::string device_of_inputs(const ReplayableCall& call) {
  std::string device = "cpu";
  for (const TensorMeta& facts : call.inputs().tensors) {
    if (!facts.device.is_cpu()) device = facts.device.str();
  }
  return device;
}

}  // namespace op_tools
