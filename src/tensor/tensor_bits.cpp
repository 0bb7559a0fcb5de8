#include "tensor/tensor_bits.h"

#define XXH_INLINE_ALL
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <c10/core/InferenceMode.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "tensor/copy_memory.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// The size of a copy from a device. Small enough for the caches, large enough to be worth the call.
constexpr int64_t kChunk = 1 << 19;

// The `count` elements from the `first` on that lie in memory, without the dispatcher: no version, no history.
at::Tensor part_of(const at::Tensor& dense, int64_t first, int64_t count) {
  constexpr int64_t kOne = 1;
  at::Tensor part = without_bits(dense);
  part.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(count), at::IntArrayRef(kOne),
                                                    dense.storage_offset() + first);
  return part;
}

// Both are dense in memory, in the same order.
bool equal_stretches(const at::Tensor& a, const at::Tensor& on_cpu) {
  const char* expected = static_cast<const char*>(on_cpu.const_data_ptr());
  bool equal = true;
  for_each_chunk(a, [&](const char* bytes, size_t size) {
    equal = bytes == expected || std::memcmp(bytes, expected, size) == 0;
    expected += size;
    return equal;
  });
  return equal;
}

}  // namespace

bool is_dense_in_memory(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && tensor.layout() == at::kStrided && why_not_plain(tensor, &type).empty() &&
         !tensor._is_zerotensor() && !tensor.is_conj() && !tensor.is_neg() && tensor.is_non_overlapping_and_dense() &&
         is_in_storage(tensor);
}

void for_each_chunk(const at::Tensor& tensor, const std::function<bool(const char* bytes, size_t size)>& look) {
  if (tensor.numel() == 0) return;
  if (tensor.device().is_cpu()) {
    look(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    return;
  }
  const int64_t most = std::min(tensor.numel(), std::max<int64_t>(1, kChunk / static_cast<int64_t>(tensor.itemsize())));
  const at::Tensor buffer = private_empty_like(part_of(tensor, 0, most), tensor.scalar_type());
  for (int64_t first = 0; first < tensor.numel(); first += most) {
    const int64_t count = std::min(most, tensor.numel() - first);
    at::Tensor here = part_of(buffer, 0, count);
    at::_ops::copy_::call(here, part_of(tensor, first, count), /*non_blocking=*/false);
    if (!look(static_cast<const char*>(buffer.const_data_ptr()), static_cast<size_t>(count) * tensor.itemsize()))
      return;
  }
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  // Autograd's zero tensors stand for zeros and have no memory.
  if (tensor._is_zerotensor()) {
    return at::_ops::zeros::call(tensor.sym_sizes(), tensor.scalar_type(), at::kStrided, c10::Device(c10::kCPU), false);
  }
  return tensor.resolve_conj().resolve_neg().to(c10::kCPU);
}

uint64_t bits_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor._is_zerotensor() || tensor.numel() == 0) return 0;
  if (is_dense_in_memory(tensor)) {
    if (tensor.device().is_cpu()) return XXH3_64bits(tensor.const_data_ptr(), tensor.nbytes());
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for_each_chunk(tensor, [&](const char* bytes, size_t size) {
      XXH3_64bits_update(&state, bytes, size);
      return true;
    });
    return XXH3_64bits_digest(&state);
  }
  std::string type;
  if (!why_not_plain(tensor, &type).empty() || !is_in_storage(tensor)) return 0;
  const at::Tensor elements = on_cpu(tensor.detach()).contiguous();
  return XXH3_64bits(elements.const_data_ptr(), elements.nbytes());
}

bool same_strided_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const c10::InferenceMode no_autograd;
  if (is_dense_in_memory(a) && is_dense_in_memory(b) && a.strides() == b.strides() && (a.is_cpu() || b.is_cpu())) {
    return b.is_cpu() ? equal_stretches(a, b) : equal_stretches(b, a);
  }
  at::Tensor left = on_cpu(a), right = on_cpu(b);
  bring_into_one_order(left, right);
  return left.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

void bring_into_one_order(at::Tensor& a, at::Tensor& b) {
  if (a.strides() == b.strides() && a.is_non_overlapping_and_dense()) return;
  a = a.contiguous();
  b = b.contiguous();
}

TensorFingerprint::TensorFingerprint(const at::Tensor& tensor, const at::Tensor& copy, const at::Tensor& same) {
  std::string type;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor._is_zerotensor() || tensor.is_inference() ||
      !why_not_plain(tensor, &type).empty()) {
    return;
  }
  storage_.emplace(tensor.storage().getWeakStorageImpl());
  versions_ = tensor.unsafeGetTensorImpl()->version_counter();
  version_ = version_of(tensor);
  options_ = tensor.options();
  sizes_ = tensor.sizes().vec();
  strides_ = tensor.strides().vec();
  offset_ = tensor.storage_offset();
  copy_ = copy;
  if (!copy.defined()) bits_ = bits_of(same);
}

c10::Storage TensorFingerprint::memory() const {
  return storage_ ? c10::Storage(storage_->lock()) : c10::Storage();
}

bool TensorFingerprint::changed_past_autograd() const {
  if (!storage_ || !versions_.enabled() || static_cast<int64_t>(versions_.current_version()) != version_) return false;
  const c10::Storage storage = memory();
  if (!storage) return false;
  // The device's own operator makes it, in the form that its others expect.
  const at::Tensor now = at::_ops::empty_memory_format::call(c10::SymIntArrayRef({c10::SymInt(0)}),
                                                             c10::typeMetaToScalarType(options_.dtype()), at::kStrided,
                                                             options_.device(), std::nullopt, std::nullopt);
  now.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  now.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
  if (!is_in_storage(now)) return false;
  return copy_.defined() ? !same_strided_bits(now, copy_) : bits_of(now) != bits_;
}

}  // namespace op_tools
