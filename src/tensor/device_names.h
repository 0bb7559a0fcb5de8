// Devices as programs name them. Any thread.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string_view>

namespace op_tools {

// "cuda", "sim:1", "privateuseone". None: no device has this name. Without an exception, as most texts are none.
std::optional<c10::Device> device_named(std::string_view text);

}  // namespace op_tools
