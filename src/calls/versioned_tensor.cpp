#include "calls/versioned_tensor.h"

#include <string>

#include "tensor/copy_memory.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

at::Tensor copied(const at::Tensor& tensor) {
  at::Tensor copy = private_copy(tensor);
  copy.set_requires_grad(tensor.requires_grad());
  return copy;
}

}  // namespace

bool has_plain_memory(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && why_not_plain(tensor, &type).empty() && tensor.layout() == at::kStrided &&
         !tensor._is_zerotensor();
}

bool share_memory(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.has_storage() && other.has_storage() && tensor.storage().is_alias_of(other.storage());
}

bool shows_part_of(const at::Tensor& whole, const at::Tensor& part) {
  if (whole.dtype() != part.dtype() || part.layout() != at::kStrided) return false;
  const at::IntArrayRef sizes = own_sizes(part), strides = own_strides(part);
  if (!whole.is_non_overlapping_and_dense()) {
    return whole.storage_offset() == part.storage_offset() && own_sizes(whole) == sizes &&
           own_strides(whole) == strides;
  }
  int64_t last = part.storage_offset();
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return part.storage_offset() >= whole.storage_offset() && last < whole.storage_offset() + whole.numel();
}

VersionedTensor::VersionedTensor(const at::Tensor& tensor) {
  if (!has_plain_memory(tensor)) return;
  tensor_ = same_memory(tensor);
  if (tensor.requires_grad()) tensor_.set_requires_grad(true);
  version_ = version_of(tensor_);
}

VersionedTensor VersionedTensor::copy_of(const at::Tensor& tensor) {
  VersionedTensor copy;
  if (!has_plain_memory(tensor)) return copy;
  copy.tensor_ = copied(tensor);
  copy.version_ = version_of(copy.tensor_);
  return copy;
}

VersionedTensor VersionedTensor::unwritten_like(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.is_non_overlapping_and_dense()) return copy_of(tensor);
  VersionedTensor copy;
  if (!has_plain_memory(tensor)) return copy;
  copy.tensor_ = private_empty_like(tensor, tensor.scalar_type());
  copy.tensor_.set_requires_grad(tensor.requires_grad());
  copy.version_ = version_of(copy.tensor_);
  return copy;
}

bool VersionedTensor::is_unchanged() const {
  return tensor_.defined() && version_of(tensor_) == version_;
}

int64_t VersionedTensor::before_write(const at::Tensor& written, Copies& copies) {
  if (!is_unchanged() || !share_memory(tensor_, written)) return 0;
  auto [copy, is_new] = copies.of(tensor_);
  tensor_ = std::move(copy);
  version_ = version_of(tensor_);
  return is_new ? static_cast<int64_t>(tensor_.nbytes()) : 0;
}

std::pair<at::Tensor, bool> VersionedTensor::Copies::of(const at::Tensor& tensor) {
  const auto* memory = static_cast<const char*>(tensor.storage().data());
  const void* first = memory + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  at::Tensor& copy = copies_[{first, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()}];
  const bool is_new = !copy.defined();
  if (is_new) copy = copied(tensor);
  return {copy, is_new};
}

}  // namespace op_tools
