#include "hooks/graph_capture.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "compat/stream_capture.h"
#include "hooks/op_call.h"

namespace op_tools {

bool is_recording_graph(c10::Device device) {
  if (device.is_cpu() || device.is_meta() || !c10::impl::hasDeviceGuardImpl(device.type())) return false;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::DeviceIndex index = device.has_index() ? device.index() : guard.getDevice().index();
  return compat::is_capturing(guard, guard.getStream(c10::Device(device.type(), index)));
}

bool is_recorded_into_graph(OpCall& call) {
  std::optional<c10::Device> device;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    if (!device && !tensor.is_cpu()) device = tensor.device();
  });
  if (!device) device = call.frame().named_device();
  return device && is_recording_graph(*device);
}

}  // namespace op_tools
