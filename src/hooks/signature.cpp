#include "hooks/signature.h"

#include <functional>
#include <string_view>

#include "hooks/plain_tensor.h"

namespace op_tools {

uint64_t signature_of(OpCall& call) {
  uint64_t hash = std::hash<std::string_view>()(call.name);
  auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29); };
  auto add = [&](const at::Tensor& tensor) {
    mix(static_cast<uint64_t>(tensor.scalar_type()) + 1);
    if (tensor.is_nested()) return;
    const at::IntArrayRef sizes = own_sizes(tensor);
    mix(static_cast<uint64_t>(sizes.size()) + 64);
    for (const int64_t size : sizes) mix(static_cast<uint64_t>(size) + 128);
  };
  call.frame().visit_inputs(add);
  return hash;
}

}  // namespace op_tools
