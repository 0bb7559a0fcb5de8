#include "hooks/signature.h"

#include <functional>

namespace op_tools {

Signature::Signature(std::string_view op) : hash_(std::hash<std::string_view>()(op)) {}

uint64_t signature_of(OpCall& call) {
  Signature signature(call.name);
  call.frame().visit_inputs([&](const at::Tensor& tensor) { signature.add(tensor); });
  return signature.value();
}

}  // namespace op_tools
