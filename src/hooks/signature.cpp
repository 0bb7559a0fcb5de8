#include "hooks/signature.h"

#include <functional>

#include "hooks/plain_tensor.h"

namespace op_tools {

Signature::Signature(std::string_view op) : hash_(std::hash<std::string_view>()(op)) {}

void Signature::add(const at::Tensor& tensor) {
  mix(static_cast<uint64_t>(tensor.scalar_type()) + 1);
  if (tensor.is_nested()) return;
  const at::IntArrayRef sizes = own_sizes(tensor);
  mix(static_cast<uint64_t>(sizes.size()) + 64);
  for (const int64_t size : sizes) mix(static_cast<uint64_t>(size) + 128);
}

uint64_t signature_of(OpCall& call) {
  Signature signature(call.name);
  call.frame().visit_inputs([&](const at::Tensor& tensor) { signature.add(tensor); });
  return signature.value();
}

}  // namespace op_tools
