#pragma once

// Is a device's stream being captured into a graph?
// Gap: DeviceGuardImplInterface::isStreamCapturing, since torch 2.12. Before it CUDA's runtime is asked, where the
// process has it. Torch 2.12 throws for a device that does not answer; since 2.13 such a device is not captured. Any
// thread.

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <string_view>

namespace op_tools::compat {

bool cuda_is_capturing(c10::Stream stream);  // false where the process has no CUDA runtime

template <typename Guard = c10::impl::VirtualGuardImpl>
bool is_capturing(const Guard& guard, c10::Stream stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    static std::array<std::atomic<bool>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> gives_no_answer = {};
    auto& asked_before = gives_no_answer[static_cast<size_t>(stream.device_type())];
    if (asked_before.load(std::memory_order_relaxed)) return false;
    try {
      return guard.isStreamCapturing(stream);
    } catch (const c10::Error& error) {
      if (std::string_view(error.what_without_backtrace()).find("support stream capture query") ==
          std::string_view::npos)
        throw;
      asked_before.store(true, std::memory_order_relaxed);
      return false;
    }
  } else {
    return stream.device_type() == c10::DeviceType::CUDA && cuda_is_capturing(stream);
  }
}

}  // namespace op_tools::compat
