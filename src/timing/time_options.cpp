#include "timing/time_options.h"

namespace op_tools {

const Choices& time_modes() {
  static const auto* names = new Choices{"sync", "event", "host"};
  return *names;
}

std::string_view to_string(TimeMode mode) {
  return time_modes()[static_cast<size_t>(mode)];
}

}  // namespace op_tools
