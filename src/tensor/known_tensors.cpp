#include "tensor/known_tensors.h"

#include <c10/util/hash.h>

#include <string>

namespace op_tools {

size_t place_of(const at::Tensor& tensor) {
  std::string type;
  if (tensor.layout() != at::kStrided || !why_not_plain(tensor, &type).empty() || !tensor.has_storage()) return 0;
  size_t place = c10::hash_combine(reinterpret_cast<size_t>(tensor.storage().unsafeGetStorageImpl()),
                                   static_cast<size_t>(tensor.storage_offset()));
  const size_t form = static_cast<size_t>(tensor.dim()) * 1024 + static_cast<size_t>(tensor.scalar_type()) * 4 +
                      static_cast<size_t>(tensor.is_conj()) * 2 + static_cast<size_t>(tensor.is_neg());
  place = c10::hash_combine(place, form);
  for (const int64_t size : own_sizes(tensor)) place = c10::hash_combine(place, static_cast<size_t>(size));
  for (const int64_t stride : own_strides(tensor)) place = c10::hash_combine(place, static_cast<size_t>(stride));
  return place;
}

}  // namespace op_tools
