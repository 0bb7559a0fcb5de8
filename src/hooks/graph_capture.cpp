#include "hooks/graph_capture.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "compat/stream_capture.h"
#include "hooks/op_call.h"
#include "tensor/device_guard.h"

namespace op_tools {

bool is_recording_graph(c10::Device device) {
  if (is_immediate(device)) return false;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return compat::is_capturing(guard, guard.getStream(with_index(device)));
}

bool is_recorded_into_graph(OpCall& call) {
  std::optional<c10::Device> device;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    if (!device && !tensor.is_cpu()) device = tensor.device();
  });
  if (!device) {
    device = call.frame().named_device();
    if (device && !is_there(*device)) return false;
  }
  return device && is_recording_graph(*device);
}

}  // namespace op_tools
