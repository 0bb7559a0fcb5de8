// The dimensions of a strided tensor with those merged that follow each other in memory. Two tensors that begin at
// the same place and have the same merged dimensions show the same elements in the same order.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace op_tools {

struct MergedDims {
  MergedDims(c10::ArrayRef<int64_t> all_sizes, c10::ArrayRef<int64_t> all_strides) {
    for (size_t i = 0; i < all_sizes.size(); ++i) {
      if (all_sizes[i] == 1) continue;
      if (!sizes.empty() && strides.back() == all_sizes[i] * all_strides[i]) {
        sizes.back() *= all_sizes[i];
        strides.back() = all_strides[i];
      } else {
        sizes.push_back(all_sizes[i]);
        strides.push_back(all_strides[i]);
      }
    }
  }
  bool operator==(const MergedDims&) const = default;

  std::vector<int64_t> sizes, strides;
};

}  // namespace op_tools
