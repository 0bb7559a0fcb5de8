// The bits of a tensor as it is now, on any device, without a copy of the tensor: data of a device passes
// through a small buffer that stays in the caches. Any thread; waits for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/export.h"

namespace op_tools {

// The elements fill a contiguous range of plain memory, in any order of dimensions: their bytes can be read in
// sequence.
bool is_dense_in_memory(const at::Tensor& tensor);

// Calls `look(bytes, size)` for consecutive chunks of the bytes of a tensor that is dense in memory, until it returns
// false.
void for_each_chunk(const at::Tensor& tensor, const std::function<bool(const char* bytes, size_t size)>& look);

// Numbers in memory, on the CPU, without pending conjugation or negation: itself where it is that already.
OP_TOOLS_API at::Tensor on_cpu(const at::Tensor& tensor);

// Brings two plain tensors of the same shape into the same order in memory: theirs when it is the same without gaps.
void bring_into_one_order(at::Tensor& a, at::Tensor& b);

// A number that changes with the bits of a tensor's elements.
uint64_t bits_of(const at::Tensor& tensor);

// Of two strided tensors: the same dtype, shape and bits, element by element (strides may differ). A tensor on a device
// is compared chunk by chunk where possible.
OP_TOOLS_API bool same_strided_bits(const at::Tensor& a, const at::Tensor& b);

// Memory that backward may read again, and its bits after the forward call. Holds neither the tensor nor its
// memory: autograd holds the memory of its saved tensors, but not the tensor object.
class TensorFingerprint {
 public:
  // `copy`: has the same bits and shape, is on the CPU, stays as it is, and is held. Undefined: there is none; the bits
  // are hashed: those of `same`, which has the same bits and strides and may be on the CPU.
  TensorFingerprint(const at::Tensor& tensor, const at::Tensor& copy, const at::Tensor& same);

  c10::Storage memory() const;  // null where it was freed

  // It was written without autograd's knowledge. False where it was freed.
  bool changed_past_autograd() const;

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::optional<WeakStorage> storage_;  // none: it cannot be looked at later
  c10::VariableVersion versions_;       // shared with the tensor and its aliases
  int64_t version_ = 0;
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  at::Tensor copy_;
  uint64_t bits_ = 0;  // without a copy
};

}  // namespace op_tools
