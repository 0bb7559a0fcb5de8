#include "tensor/device_names.h"

#include <c10/core/DeviceType.h>

#include <charconv>
#include <cstdint>

namespace op_tools {
namespace {

std::optional<c10::DeviceType> type_named(std::string_view name) {
  if (name == "privateuseone") return c10::kPrivateUse1;  // whatever it was renamed to
  for (int8_t number = 0; number < static_cast<int8_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES); ++number) {
    const auto type = static_cast<c10::DeviceType>(number);
    if (c10::isValidDeviceType(type) && c10::DeviceTypeName(type, /*lower_case=*/true) == name) return type;
  }
  return std::nullopt;
}

}  // namespace

std::optional<c10::Device> device_named(std::string_view text) {
  const size_t colon = text.find(':');
  const std::optional<c10::DeviceType> type = type_named(text.substr(0, colon));
  if (!type || colon == std::string_view::npos) return type ? std::optional(c10::Device(*type)) : std::nullopt;
  const std::string_view digits = text.substr(colon + 1);
  int8_t index = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (failure != std::errc() || end != digits.data() + digits.size() || index < 0) return std::nullopt;
  return c10::Device(*type, index);
}

}  // namespace op_tools
