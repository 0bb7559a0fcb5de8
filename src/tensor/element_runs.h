// The bytes of a storage that the elements of a strided tensor fill, in runs of neighbours.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor/merged_dims.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

// visit(begin, end), in the order of the elements. Plain tensors with elements.
template <class Visit>
void each_run(const at::Tensor& tensor, const Visit& visit) {
  if (tensor.is_non_overlapping_and_dense()) {
    const ByteRange all = bytes_shown(tensor);
    return visit(all.begin, all.end);
  }
  const int64_t element = static_cast<int64_t>(tensor.itemsize()), first = tensor.storage_offset() * element;
  const MergedDims dims(tensor.sizes(), tensor.strides());
  const bool is_in_runs = !dims.strides.empty() && dims.strides.back() == 1;
  const size_t outer = dims.sizes.size() - (is_in_runs ? 1 : 0);
  const int64_t run = (is_in_runs ? dims.sizes.back() : 1) * element;
  std::vector<int64_t> index(outer);
  for (int64_t place = first;;) {
    visit(place, place + run);
    size_t dim = outer;
    for (; dim > 0; --dim) {
      place += dims.strides[dim - 1] * element;
      if (++index[dim - 1] < dims.sizes[dim - 1]) break;
      place -= dims.strides[dim - 1] * dims.sizes[dim - 1] * element;
      index[dim - 1] = 0;
    }
    if (dim == 0) return;
  }
}

}  // namespace op_tools
