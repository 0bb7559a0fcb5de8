#include "observe/finite_cache.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// A number that changes with where in memory the elements are; 0 where there is none.
size_t place_of(const at::Tensor& tensor) {
  std::string type;
  if (tensor.layout() != at::kStrided || !why_not_plain(tensor, &type).empty() || !tensor.has_storage()) return 0;
  size_t place = c10::hash_combine(reinterpret_cast<size_t>(tensor.storage().unsafeGetStorageImpl()),
                                   static_cast<size_t>(tensor.storage_offset()));
  for (const int64_t size : own_sizes(tensor)) place = c10::hash_combine(place, static_cast<size_t>(size));
  for (const int64_t stride : own_strides(tensor)) place = c10::hash_combine(place, static_cast<size_t>(stride));
  return place;
}

}  // namespace

FlagPtr KnownTensors::find(const at::Tensor& tensor) const {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found == known_.end()) return nullptr;
  const Known& known = found->second;
  if (known.is_dead() || known.counter.current_version() != known.version || known.version != version_of(tensor) ||
      known.place != place_of(tensor)) {
    return nullptr;
  }
  return known.flag;
}

void KnownTensors::put(const at::Tensor& tensor, FlagPtr flag) {
  if (tensor.is_inference()) return;  // writes to it are not counted
  if (sweeps_.due(known_.size(), tensor.has_storage() ? tensor.storage().nbytes() : 0)) sweep();
  Known known{tensor.unsafeGetTensorImpl()->version_counter(), version_of(tensor), place_of(tensor), std::move(flag)};
  if (known.place != 0) known.storage.emplace(tensor.storage().getWeakStorageImpl());
  known_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(known));
}

void KnownTensors::sweep() {
  for (auto one = known_.begin(); one != known_.end();) {
    one = one->second.is_dead() ? known_.erase(one) : std::next(one);
  }
  sweeps_.done(known_.size());
}

void UnwrittenMemory::add(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  if (sweeps_.due(storages_.size(), tensor.storage().nbytes())) {
    std::erase_if(storages_, [](const auto& one) { return one.second.expired(); });
    sweeps_.done(storages_.size());
  }
  storages_.insert_or_assign(tensor.storage().unsafeGetStorageImpl(), tensor.storage().getWeakStorageImpl());
}

void UnwrittenMemory::may_have_written(const at::Tensor& tensor) {
  if (tensor.has_storage() && version_of(tensor) != 0) storages_.erase(tensor.storage().unsafeGetStorageImpl());
}

bool UnwrittenMemory::holds(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || version_of(tensor) > 0) return false;
  const auto found = storages_.find(tensor.storage().unsafeGetStorageImpl());
  return found != storages_.end() && !found->second.expired();
}

}  // namespace op_tools
