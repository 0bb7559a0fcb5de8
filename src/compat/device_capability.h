#pragma once

// What a device can do, as a backend's guard tells torch.
// Gap: DeviceGuardImplInterface::getDeviceCapability() since torch 2.10; before it torch does not ask.

#if __has_include(<c10/core/DeviceCapability.h>)
#include <c10/core/DeviceCapability.h>

namespace op_tools::compat {
using c10::DeviceCapability;
}
#else
namespace op_tools::compat {
struct DeviceCapability {};
}  // namespace op_tools::compat
#endif
