#pragma once

// Is a device's stream being captured into a graph?
// Gap: DeviceGuardImplInterface::isStreamCapturing, since torch 2.12. Before it CUDA's runtime is asked, where the
// process has it. Any thread.

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace op_tools::compat {

bool cuda_is_capturing(c10::Stream stream);  // false where the process has no CUDA runtime

template <typename Guard = c10::impl::VirtualGuardImpl>
bool is_capturing(const Guard& guard, c10::Stream stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return stream.device_type() == c10::DeviceType::CUDA && cuda_is_capturing(stream);
  }
}

}  // namespace op_tools::compat
