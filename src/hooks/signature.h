// Which calls are alike: same operator, shapes and dtypes. For the limits of tools ("the first three of each") and for
// tables by shape.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/export.h"
#include "hooks/op_call.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

// Of an operator and the tensors that are added, in their order. For who visits the inputs for other things, too.
class OP_TOOLS_API Signature {
 public:
  Signature() = default;  // of tensors alone
  explicit Signature(std::string_view op);
  void add(const at::Tensor& tensor) {
    tensor.is_nested() ? add(tensor.scalar_type()) : add(tensor.scalar_type(), own_sizes(tensor));
  }
  // The same for who has the tensor's own_sizes(); of a nested tensor there are none.
  void add(c10::ScalarType dtype) { hash_ = mixed(hash_, static_cast<uint64_t>(dtype) + 1); }
  void add(c10::ScalarType dtype, at::IntArrayRef sizes) {
    const uint64_t kind = (static_cast<uint64_t>(dtype) + 1) | (static_cast<uint64_t>(sizes.size()) + 1) << 32;
    uint64_t hash = mixed(hash_, kind);
    for (const int64_t size : sizes) hash = mixed(hash, static_cast<uint64_t>(size) + 128);
    hash_ = hash;  // once: the sizes might lie there, for all that the compiler knows
  }
  uint64_t value() const { return hash_; }

 private:
  static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29); }
  uint64_t hash_ = 0;
};

// Of the forward call's inputs; stable within a process only.
OP_TOOLS_API uint64_t signature_of(OpCall& call);

}  // namespace op_tools
