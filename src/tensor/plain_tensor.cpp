#include "tensor/plain_tensor.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <array>
#include <optional>

#include "tensor/dispatch_keys.h"

namespace op_tools {
namespace {

bool has_form(c10::Layout layout) {
  switch (layout) {
    case at::kStrided:
    case at::kSparse:
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      return true;
    default:
      return false;
  }
}

// Most tensors, recognised at once: those of a backend's own kernels, with memory.
bool is_ordinary(const at::Tensor& tensor, c10::DispatchKeySet keys) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kSpecial =
      c10::DispatchKeySet({DispatchKey::Python, DispatchKey::Functionalize, DispatchKey::Sparse, DispatchKey::SparseCsr,
                           DispatchKey::Quantized, DispatchKey::NestedTensor, DispatchKey::ZeroTensor,
                           DispatchKey::MkldnnCPU}) |
      kFunctorchWrapperKeys;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return keys.has(DispatchKey::Dense) && keys.has_backend(c10::BackendComponent::CPUBit) && !keys.has_any(kSpecial) &&
         impl.has_storage() && impl.unsafe_storage().data() != nullptr;
}

}  // namespace

std::string why_not_plain(const at::Tensor& tensor, std::string* type) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (is_ordinary(tensor, keys)) return {};
  if (keys.has(c10::DispatchKey::Python)) {
    *type = "tensor subclass";
    return "a subclass with its own dispatch (DTensor, fake tensor, ...) has no plain storage";
  }
  if (keys.has_any(kFunctorchWrapperKeys)) {
    *type = "functorch tensor";
    return "a tensor inside vmap or a functorch transform has no storage of its own";
  }
  if (keys.has(c10::DispatchKey::Functionalize)) {
    *type = "functional tensor";
    return "a tensor inside functionalisation has a storage without data";
  }
  if (tensor.is_meta()) {
    *type = "meta tensor";
    return "it has no data";
  }
  if (tensor.is_nested()) {
    *type = "nested tensor";
    return "nested tensors are not supported";
  }
  if (tensor.is_quantized()) {
    *type = "quantized tensor";
    return "quantized tensors are not supported (deprecated in torch)";
  }
  if (tensor.is_mkldnn()) {
    *type = "mkldnn tensor";
    return "its layout is opaque; to_dense() it first";
  }
  if (!has_form(tensor.layout())) {
    *type = "tensor";
    return "its layout is not supported";
  }
  if (tensor.layout() == at::kStrided && !tensor._is_zerotensor() &&
      (!tensor.has_storage() || !tensor.unsafeGetTensorImpl()->has_storage())) {
    *type = "tensor without storage";
    return "it has no data to copy";
  }
  // A storage may claim bytes that were never allocated; reading it would crash the process.
  if (tensor.layout() == at::kStrided && !tensor._is_zerotensor() && tensor.is_cpu() && tensor.numel() > 0 &&
      tensor.storage().data() == nullptr) {
    *type = "tensor without data";
    return "its storage is not allocated";
  }
  return {};
}

bool is_copied_by_its_device(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  return keys.has(c10::DispatchKey::Dense) && !keys.has(c10::DispatchKey::Python) &&
         !keys.has(c10::DispatchKey::Functionalize) && !keys.has_any(kFunctorchWrapperKeys) && !tensor.is_cpu() &&
         !tensor.is_meta() && tensor.layout() == at::kStrided && !tensor._is_zerotensor() &&
         !tensor.unsafeGetTensorImpl()->has_storage();
}

std::string why_not_copied(const at::Tensor& tensor, std::string* type) {
  std::string why = why_not_plain(tensor, type);
  if (!why.empty() && is_copied_by_its_device(tensor)) why.clear();
  return why;
}

at::IntArrayRef own_strides(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.has_symbolic_sizes_strides()) return {};
  if (!impl.has_storage() && !impl.is_python_dispatch()) {
    try {
      return tensor.strides();
    } catch (const c10::Error&) {  // "OpaqueTensorImpl do not have strides"
      return {};
    }
  }
  return impl.is_python_dispatch() ? impl.strides_default() : tensor.strides();
}

ByteRange bytes_shown(const at::Tensor& tensor) {
  const at::IntArrayRef sizes = own_sizes(tensor), strides = own_strides(tensor);
  int64_t last = tensor.storage_offset();
  const int64_t first = last, bytes = static_cast<int64_t>(tensor.itemsize());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {};
    last += (sizes[d] - 1) * strides[d];
  }
  return {first * bytes, (last + 1) * bytes};
}

bool share_bytes(const at::Tensor& tensor, const at::Tensor& other) {
  if (!tensor.has_storage() || !other.has_storage() || !tensor.storage().is_alias_of(other.storage())) return false;
  const ByteRange a = bytes_shown(tensor), b = bytes_shown(other);
  return a.begin < b.end && b.begin < a.end;
}

bool is_in_storage(const at::Tensor& tensor) {
  return static_cast<size_t>(bytes_shown(tensor).end) <= tensor.storage().nbytes();
}

size_t storage_bytes(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return 0;
  const std::optional<int64_t> bytes = tensor.storage().sym_nbytes().maybe_as_int();
  return static_cast<size_t>(bytes.value_or(0));
}

bool is_of_trace(const at::Tensor& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has(c10::DispatchKey::Functionalize)) return true;
  // A fake tensor has the keys of the device that it stands for, and memory on none; so has a tensor from which torch
  // is about to make one, which has no Python key.
  const bool is_meta = keys.has_backend(c10::BackendComponent::MetaBit) && !keys.has(c10::DispatchKey::Python);
  if (!is_meta && tensor.has_storage() && tensor.storage().device_type() == at::kMeta) return true;
  return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

bool is_jagged(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.is_python_dispatch() || !impl.has_symbolic_sizes_strides()) return false;
  const c10::SymIntArrayRef sizes = impl.sym_sizes_default();
  return std::any_of(sizes.begin(), sizes.end(), [](const c10::SymInt& size) {
    return size.is_heap_allocated() && size.toSymNode()->is_nested_int();
  });
}

bool computes_shapes_only() {
  using c10::impl::TorchDispatchModeTLS;
  return TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE).has_value();
}

namespace {
// On the memory of a tensor, without the bits that change how it reads.
at::Tensor on_memory_of(const at::Tensor& tensor, caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                        at::IntArrayRef strides, int64_t offset) {
  auto plain = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()),
      tensor.key_set() - c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}), dtype);
  plain.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return plain;
}
}  // namespace

at::Tensor without_bits(const at::Tensor& tensor) {
  return on_memory_of(tensor, tensor.dtype(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

at::Tensor bytes_of_storage(const at::Tensor& tensor, ByteRange range) {
  const std::array size{range.end - range.begin}, stride{int64_t{1}};
  return on_memory_of(tensor, caffe2::TypeMeta::Make<uint8_t>(), size, stride, range.begin);
}

at::Tensor same_memory(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/true));
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
}

}  // namespace op_tools
