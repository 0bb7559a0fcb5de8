#include "hooks/signature.h"

#include <functional>

#include "tensor/plain_tensor.h"

namespace op_tools {

Signature::Signature(std::string_view op) : hash_(std::hash<std::string_view>()(op)) {}

void Signature::add(const at::Tensor& tensor) {
  if (tensor.is_nested()) return add(tensor.scalar_type());
  add(tensor.scalar_type(), own_sizes(tensor));
}

uint64_t signature_of(OpCall& call) {
  Signature signature(call.name);
  call.frame().visit_inputs([&](const at::Tensor& tensor) { signature.add(tensor); });
  return signature.value();
}

}  // namespace op_tools
