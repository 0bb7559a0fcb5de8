// Which tensors are plain: a storage, sizes and strides (or the parts of a sparse tensor) that can be copied. Asked by
// code that copies a call's tensors. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/export.h"

namespace op_tools {

// Why a tensor cannot be copied by its parts; empty when it can. `type` then names its kind, for people.
OP_TOOLS_API std::string why_not_plain(const at::Tensor& tensor, std::string* type);

// Not plain, but its device makes a plain copy of it on the CPU: a device whose tensors have no storage.
OP_TOOLS_API bool is_copied_by_its_device(const at::Tensor& tensor);
// It can be copied, by its parts or by its device; else why not, as above.
OP_TOOLS_API std::string why_not_copied(const at::Tensor& tensor, std::string* type);

// Sizes and strides as torch itself keeps them. A subclass may answer in their place: that is the program's own code,
// and torch leaves a mark in the tensor that was asked, so no tool may ask. Empty where they are symbolic; strides also
// where the tensor refuses to tell them.
inline at::IntArrayRef own_sizes(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.has_symbolic_sizes_strides()) return {};
  return impl.is_python_dispatch() ? impl.sizes_default() : impl.sizes();
}
OP_TOOLS_API at::IntArrayRef own_strides(const at::Tensor& tensor);

// The bytes of its storage between its first and its last element; none where it has no elements. Strided tensors.
struct ByteRange {
  int64_t begin = 0, end = 0;
};
OP_TOOLS_API ByteRange bytes_shown(const at::Tensor& tensor);
// Do these bytes of the two have some in common? False without storages.
OP_TOOLS_API bool share_bytes(const at::Tensor& tensor, const at::Tensor& other);
// False: the storage was freed or made smaller under the tensor.
OP_TOOLS_API bool is_in_storage(const at::Tensor& tensor);
// Of its whole storage; 0 where that is symbolic (a tensor of a compiler's trace), or where there is none.
OP_TOOLS_API size_t storage_bytes(const at::Tensor& tensor);

// Of a compiler or an exporter: there are no numbers in it, and nothing is computed.
OP_TOOLS_API bool is_of_trace(const at::Tensor& tensor);
// A nested tensor of torch.jagged, which has a size that is no number though nothing is traced.
OP_TOOLS_API bool is_jagged(const at::Tensor& tensor);
// A FakeTensorMode is on in this thread: all that is called makes such tensors.
OP_TOOLS_API bool computes_shapes_only();

// The elements as they lie in memory: the same storage and strides without the bits (conj, neg) that change how they
// read. Plain strided tensors only; made without the dispatcher, so without a version or a history in common.
OP_TOOLS_API at::Tensor without_bits(const at::Tensor& tensor);

// Bytes of its storage, as a tensor of bytes on its device; made in the same way.
OP_TOOLS_API at::Tensor bytes_of_storage(const at::Tensor& tensor, ByteRange range);

// Another tensor on the same memory, with the same version counter and without the history: to hold or to show in the
// place of a tensor that the program must go on owning alone (autograd takes over gradients that have no other owner;
// Python makes a Parameter of a tensor that no Python object stands for yet). Strided and plain tensors.
OP_TOOLS_API at::Tensor same_memory(const at::Tensor& tensor);

// The version counter that in-place operators move; -1: the tensor has none (inference mode).
OP_TOOLS_API int64_t version_of(const at::Tensor& tensor);

}  // namespace op_tools
