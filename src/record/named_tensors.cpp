#include "record/named_tensors.h"

#include "tensor/known_tensors.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
TensorOrigin TensorOrigins::find(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return {};
  const auto found = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == storages_.end() || found->second.storage.expired()) return {};
  const Known& known = found->second;
  if (known.producer != kNoCall && known.version == version_of(tensor)) {
    return {Origin::kCall, known.producer, known.output, known.name};
  }
  return {known.named, kNoCall, 0, known.name};
}

TensorOrigins::Known* TensorOrigins::known_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  if (sweeps_.due(storages_.size(), storage_bytes(tensor))) {
    for (auto one = storages_.begin(); one != storages_.end();) {
      if (one->second.storage.expired()) {
        one = storages_.erase(one);
      } else {
        ++one;
      }
    }
    sweeps_.done(storages_.size());
  }
  // A storage that is held weakly keeps its address; the address of a storage that is gone is another's now only when
  // it was released here.
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto found = storages_.find(storage);
  if (found != storages_.end()) return &found->second;
  return &storages_.emplace(storage, Known{tensor.storage().getWeakStorageImpl()}).first->second;
}

StringNumber TensorOrigins::made(const at::Tensor& tensor, uint32_t call, uint32_t output) {
  Known* const known = known_of(tensor);
  if (!known) return 0;
  known->producer = call;
  known->output = output;
  known->version = version_of(tensor);
  return known->name;
}

void TensorOrigins::name(const at::Tensor& tensor, Origin origin, StringNumber name) {
  Known* const known = known_of(tensor);
  if (!known || (known->named == Origin::kParameter && origin == Origin::kInput)) return;
  known->named = origin;
  known->name = name;
}

}  // namespace op_tools
