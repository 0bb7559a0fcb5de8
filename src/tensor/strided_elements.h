// The elements of a strided tensor on the CPU in the order of their indices, part by part. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tensor/merged_dims.h"

namespace op_tools {

class StridedElements {
 public:
  explicit StridedElements(const at::Tensor& tensor);  // which lives longer

  // `n` elements from `first` on: where they are, or copied to `buffer`.
  const void* find(int64_t first, int64_t n, char* buffer) const {
    return dims_ ? copy(first, n, buffer) : data_ + first * element_;
  }

 private:
  const void* copy(int64_t first, int64_t n, char* buffer) const;

  const char* const data_;
  const int64_t element_;           // bytes
  std::optional<MergedDims> dims_;  // nothing: contiguous
};

}  // namespace op_tools
