#include "base/version.h"

namespace op_tools {

std::string_view version() {
  return OP_TOOLS_VERSION;
}
std::string_view built_with_torch() {
  return OP_TOOLS_TORCH_VERSION;
}

}  // namespace op_tools
