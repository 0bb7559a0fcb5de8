// Facts about a tensor without its memory: for records, tables and files. Plain data; any thread.
#pragma once

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "base/export.h"

namespace op_tools {

// Calls of an operator that differ in this are different calls in tables.
struct OP_TOOLS_API TensorShape {
  at::DimVector shape;  // empty: a scalar, or a nested tensor, which has no sizes to ask for
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::kCPU;

  static TensorShape of(const at::Tensor& tensor);
  bool operator==(const TensorShape& other) const {
    return dtype == other.dtype && device == other.device && shape == other.shape;
  }
};

struct OP_TOOLS_API TensorMeta : TensorShape {
  at::DimVector stride;  // empty where the layout has none
  c10::Layout layout = c10::kStrided;
  bool requires_grad = false;
  bool is_leaf = true;
  int64_t storage = -1;  // in a list: a number that tensors over the same storage share; -1: not known, or none
  int64_t offset = 0;    // in the program's storage, in elements

  static TensorMeta of(const at::Tensor& tensor);
  bool operator==(const TensorMeta&) const = default;
};

}  // namespace op_tools
