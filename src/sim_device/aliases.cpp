#include "sim_device/aliases.h"

#include <algorithm>
#include <utility>

#include "sim_device/device.h"
#include "sim_device/memory.h"

namespace op_tools::sim_device {
namespace {

void check_strided(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && !tensor.is_quantized(),
                              "sim: only dense strided tensors are supported, not ", tensor.layout(),
                              tensor.is_quantized() ? " quantized ones" : "");
}

// `like` over another storage, for another backend.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey backend, const at::Tensor& like) {
  c10::DispatchKeySet keys(backend);
  // Only the constructor may set this key; without it the zero gradients of complex functions crash.
  if (like._is_zerotensor()) keys = keys.add(c10::DispatchKey::ZeroTensor);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return at::Tensor(std::move(impl));
}

int position(const std::vector<const void*>& keys, const void* key) {
  const auto entry = std::find(keys.begin(), keys.end(), key);
  return entry == keys.end() ? -1 : static_cast<int>(entry - keys.begin());
}

// A list of lists of tensors, as the outputs of all_gather.
bool has_lists(const c10::IValue& value) {
  return value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList();
}

template <class F>
c10::IValue with_tensors(const c10::IValue& value, F&& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      changed.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : tensor);
    }
    return changed;
  }
  if (has_lists(value)) {
    c10::List<c10::List<at::Tensor>> changed;
    for (const c10::IValue& item : value.toListRef()) changed.push_back(with_tensors(item, change).toTensorList());
    return changed;
  }
  return value;
}

}  // namespace

at::Tensor cpu_alias(const at::Tensor& tensor) {
  check_strided(tensor);
  return tensor_over(host_storage_of(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> tensors;
  if (!has_lists(value)) return tensors;
  for (const c10::IValue& item : value.toListRef()) {
    for (const at::Tensor& tensor : item.toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

c10::IValue Aliases::to_cpu(const c10::IValue& value) {
  if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (device.type() != c10::kPrivateUse1) return value;
    device_ = c10::Device(c10::kPrivateUse1, device.has_index() ? device.index() : current_device());
    return c10::Device(c10::kCPU);
  }
  if (value.isGenerator()) {
    const at::Generator& generator = value.toGenerator();
    return generator.device().type() == c10::kPrivateUse1 ? cpu_generator_in(generator) : value;
  }
  if (value.isStorage()) return storage_to_cpu(value.toStorage());
  return with_tensors(value, [this](const at::Tensor& tensor) { return tensor_to_cpu(tensor); });
}

c10::IValue Aliases::to_device(const c10::IValue& value) {
  return with_tensors(value, [this](const at::Tensor& tensor) { return tensor_to_device(tensor); });
}

at::Tensor Aliases::tensor_to_cpu(const at::Tensor& tensor) {
  if (!is_sim(tensor)) {
    has_cpu_tensor_ = has_cpu_tensor_ || (tensor.defined() && tensor.dim() > 0);
    return tensor;
  }
  const int known = position(original_keys_, tensor.unsafeGetTensorImpl());
  if (known >= 0) return aliases_[static_cast<size_t>(known)];
  if (!device_) device_ = tensor.device();
  if (tensor.device() != *device_ && tensor.dim() > 0) second_device_ = tensor.device();
  check_strided(tensor);
  at::Tensor alias = tensor_over(storage_to_cpu(tensor.storage()), c10::DispatchKey::CPU, tensor);
  originals_.push_back(tensor);
  original_keys_.push_back(tensor.unsafeGetTensorImpl());
  alias_keys_.push_back(alias.unsafeGetTensorImpl());
  aliases_.push_back(alias);
  return alias;
}

c10::Storage Aliases::storage_to_cpu(const c10::Storage& storage) {
  if (storage.device_type() != c10::kPrivateUse1) return storage;
  const int known = position(storage_keys_, storage.unsafeGetStorageImpl());
  if (known >= 0) return host_storages_[static_cast<size_t>(known)];
  storages_.push_back(storage);
  storage_keys_.push_back(storage.unsafeGetStorageImpl());
  host_storages_.push_back(host_storage_of(storage));
  host_keys_.push_back(host_storages_.back().unsafeGetStorageImpl());
  return host_storages_.back();
}

c10::Storage Aliases::storage_to_device(const c10::Storage& host) {
  const int known = position(host_keys_, host.unsafeGetStorageImpl());
  if (known >= 0) return storages_[static_cast<size_t>(known)];
  host_storages_.push_back(host);
  host_keys_.push_back(host.unsafeGetStorageImpl());
  storages_.push_back(adopt(host, *device_));
  storage_keys_.push_back(storages_.back().unsafeGetStorageImpl());
  return storages_.back();
}

at::Tensor Aliases::tensor_to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || !device_) return tensor;
  const int known = argument(tensor);
  if (known >= 0) return originals_[static_cast<size_t>(known)];
  if (tensor.device().type() != c10::kCPU) return tensor;
  check_strided(tensor);
  const c10::InferenceMode mode(is_inference(tensor));
  return tensor_over(storage_to_device(tensor.storage()), c10::DispatchKey::PrivateUse1, tensor);
}

bool Aliases::follow() {
  bool changed = false;
  for (size_t i = 0; i < storages_.size(); ++i) changed |= follow_host_storage(storages_[i], host_storages_[i]);
  for (size_t i = 0; i < originals_.size(); ++i) {
    auto* original = originals_[i].unsafeGetTensorImpl();
    const at::Tensor& alias = aliases_[i];
    const c10::Storage storage = storage_to_device(alias.storage());
    if (original->storage().unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) {
      original->set_storage_keep_dtype(storage);
      changed = true;
    }
    if (original->sizes() != alias.sizes() || original->strides() != alias.strides() ||
        original->storage_offset() != alias.storage_offset()) {
      original->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      changed = true;
    }
  }
  return changed;
}

// A tensor on an argument's memory is an inference tensor where the argument is so, in every mode: autograd makes a
// view of it, and refuses a view of the other kind. New tensors are inference tensors in inference mode.
bool Aliases::is_inference(const at::Tensor& cpu) const {
  const int storage = position(host_keys_, cpu.storage().unsafeGetStorageImpl());
  if (storage < 0) return c10::InferenceMode::is_enabled();
  const auto* shown = storages_[static_cast<size_t>(storage)].unsafeGetStorageImpl();
  const auto original = std::find_if(originals_.begin(), originals_.end(), [&](const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl() == shown;
  });
  return original == originals_.end() ? c10::InferenceMode::is_enabled() : original->is_inference();
}

int Aliases::argument(const at::Tensor& cpu) const {
  return position(alias_keys_, cpu.unsafeGetTensorImpl());
}

bool Aliases::shares_memory(const at::Tensor& cpu) const {
  return position(host_keys_, cpu.storage().unsafeGetStorageImpl()) >= 0;
}

void Aliases::keep_cpu_scalars(torch::jit::Stack& arguments) const {
  const auto keep = [this](const at::Tensor& tensor) {
    if (!tensor.defined() || argument(tensor) >= 0) return tensor;
    at::Tensor copy = tensor.clone();
    // A Python number stays a number: it has no say in the type of the result.
    copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
  };
  for (c10::IValue& value : arguments) value = with_tensors(value, keep);
}

}  // namespace op_tools::sim_device
