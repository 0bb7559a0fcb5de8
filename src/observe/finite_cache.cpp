#include "observe/finite_cache.h"

#include "tensor/plain_tensor.h"

namespace op_tools {

void UnwrittenMemory::add(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  if (sweeps_.due(storages_.size(), storage_bytes(tensor))) {
    std::erase_if(storages_, [](const auto& storage) { return storage.second.expired(); });
    sweeps_.done(storages_.size());
  }
  storages_.insert_or_assign(tensor.storage().unsafeGetStorageImpl(), tensor.storage().getWeakStorageImpl());
}

void UnwrittenMemory::may_have_written(const at::Tensor& tensor) {
  if (tensor.has_storage() && version_of(tensor) != 0) storages_.erase(tensor.storage().unsafeGetStorageImpl());
}

bool UnwrittenMemory::holds(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || version_of(tensor) > 0) return false;
  const auto entry = storages_.find(tensor.storage().unsafeGetStorageImpl());
  return entry != storages_.end() && !entry->second.expired();
}

}  // namespace op_tools
