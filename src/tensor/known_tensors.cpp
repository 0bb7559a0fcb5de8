#include "tensor/known_tensors.h"

#include <c10/util/hash.h>

#include <array>
#include <string>

#include "tensor/merged_dims.h"

namespace op_tools {
namespace {

bool has_place(const at::Tensor& tensor) {
  std::string type;
  return tensor.layout() == at::kStrided && why_not_plain(tensor, &type).empty() && tensor.has_storage();
}

// With these dimensions in the place of the tensor's.
size_t hash_of_place(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  size_t place = c10::hash_combine(reinterpret_cast<size_t>(tensor.storage().unsafeGetStorageImpl()),
                                   static_cast<size_t>(tensor.storage_offset()));
  const size_t form = sizes.size() * 1024 + static_cast<size_t>(tensor.scalar_type()) * 4 +
                      static_cast<size_t>(tensor.is_conj()) * 2 + static_cast<size_t>(tensor.is_neg());
  place = c10::hash_combine(place, form);
  for (const int64_t size : sizes) place = c10::hash_combine(place, static_cast<size_t>(size));
  for (const int64_t stride : strides) place = c10::hash_combine(place, static_cast<size_t>(stride));
  return place;
}

}  // namespace

size_t place_of(const at::Tensor& tensor) {
  return has_place(tensor) ? hash_of_place(tensor, own_sizes(tensor), own_strides(tensor)) : 0;
}

size_t place_of_elements(const at::Tensor& tensor) {
  if (!has_place(tensor)) return 0;
  if (tensor.is_contiguous()) return hash_of_place(tensor, std::array{tensor.numel()}, std::array{int64_t{1}});
  const MergedDims dims(own_sizes(tensor), own_strides(tensor));
  return hash_of_place(tensor, dims.sizes, dims.strides);
}

}  // namespace op_tools
