#include "tensor/autocast.h"

#include <ATen/autocast_mode.h>

namespace op_tools {

namespace autocast = at::autocast;

std::optional<c10::ScalarType> autocast_dtype(c10::DeviceType device, c10::DispatchKeySet excluded) {
  if (!autocast::is_autocast_available(device)) return {};  // meta has none
  if (excluded.has(autocast::get_autocast_dispatch_key_from_device_type(device))) return {};
  return autocast::get_autocast_dtype(device);
}

c10::SmallVector<Autocast, 2> autocast_devices(c10::DispatchKeySet excluded) {
  c10::SmallVector<Autocast, 2> devices;
  if ((c10::autocast_dispatch_keyset - excluded).empty()) return devices;  // as for nearly every call
  for (const c10::DeviceType device : autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    if (const auto dtype = autocast_dtype(device, excluded)) devices.push_back({device, *dtype});
  }
  return devices;
}

bool is_autocast_cache_enabled() {
  return autocast::is_autocast_cache_enabled();
}

AutocastDtype::AutocastDtype(c10::DeviceType device, std::optional<c10::ScalarType> dtype)
    : device_(device), before_(dtype ? std::optional(autocast::get_autocast_dtype(device)) : std::nullopt) {
  if (dtype) autocast::set_autocast_dtype(device_, *dtype);
}

AutocastDtype::~AutocastDtype() {
  if (before_) autocast::set_autocast_dtype(device_, *before_);
}

AutocastState::AutocastState(const c10::SmallVector<Autocast, 2>& devices, bool cache)
    : cache_(autocast::is_autocast_cache_enabled()) {
  for (const auto& [device, dtype] : devices) {
    before_.push_back({{device, autocast::get_autocast_dtype(device)}, autocast::is_autocast_enabled(device)});
    autocast::set_autocast_enabled(device, true);
    autocast::set_autocast_dtype(device, dtype);
  }
  autocast::set_autocast_cache_enabled(cache);
}

AutocastState::~AutocastState() {
  for (const auto& [autocast, enabled] : before_) {
    at::autocast::set_autocast_enabled(autocast.device, enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  if (!before_.empty()) autocast::clear_cache();
  autocast::set_autocast_cache_enabled(cache_);
}

}  // namespace op_tools
