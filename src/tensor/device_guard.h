// Devices by their guards: whether there is such a device, and which one is meant by a device without an index.
// Any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace op_tools {

// A device whose work is done when the call returns, as far as torch knows: a backend without a guard cannot be asked.
inline bool is_immediate(c10::Device device) {
  return device.is_cpu() || device.is_meta() || !c10::impl::hasDeviceGuardImpl(device.type());
}

// A program may name a device that this process has not (torch.device("xla", 0)): nothing may be asked of it.
inline bool is_there(c10::Device device) {
  return c10::impl::hasDeviceGuardImpl(device.type()) &&
         std::max<int>(device.index(), 0) < c10::impl::VirtualGuardImpl(device.type()).deviceCount();
}

// The thread's current device of its type, where the device has no index. For a device with a guard.
inline c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace op_tools
