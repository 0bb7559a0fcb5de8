#include "tensor/tensor_meta.h"

#include "tensor/plain_tensor.h"

namespace op_tools {

TensorShape TensorShape::of(const at::Tensor& tensor) {
  TensorShape shape;
  if (!tensor.is_nested()) shape.shape = own_sizes(tensor);
  shape.dtype = tensor.scalar_type();
  shape.device = tensor.device();
  return shape;
}

TensorMeta TensorMeta::of(const at::Tensor& tensor) {
  TensorMeta meta;
  static_cast<TensorShape&>(meta) = TensorShape::of(tensor);
  meta.layout = tensor.layout();
  if (meta.layout == at::kStrided && !tensor.is_nested()) meta.stride = own_strides(tensor);
  meta.requires_grad = tensor.requires_grad();
  meta.is_leaf = tensor.is_leaf();
  return meta;
}

}  // namespace op_tools
