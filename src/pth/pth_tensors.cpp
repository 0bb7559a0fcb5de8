#include "pth/pth_tensors.h"

#include <ATen/ops/_sparse_compressed_tensor_unsafe_ops.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe_ops.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args_ops.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args_ops.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "compat/sparse_arguments.h"
#include "tensor/value.h"

namespace op_tools {
namespace {

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 12> kTypedStorages{{
    {at::kFloat, "FloatStorage"},
    {at::kDouble, "DoubleStorage"},
    {at::kHalf, "HalfStorage"},
    {at::kBFloat16, "BFloat16Storage"},
    {at::kByte, "ByteStorage"},
    {at::kChar, "CharStorage"},
    {at::kShort, "ShortStorage"},
    {at::kInt, "IntStorage"},
    {at::kLong, "LongStorage"},
    {at::kBool, "BoolStorage"},
    {at::kComplexFloat, "ComplexFloatStorage"},
    {at::kComplexDouble, "ComplexDoubleStorage"},
}};

void check_extent(size_t nbytes, int64_t itemsize, int64_t offset, const std::vector<int64_t>& sizes,
                  const std::vector<int64_t>& strides) {
  if (sizes.size() != strides.size())
    throw Error("a tensor with " + std::to_string(sizes.size()) + " sizes and " + std::to_string(strides.size()) +
                " strides");
  const int64_t numel = checked_numel(sizes);
  bool fits = offset >= 0;
  int64_t end = offset;  // the place behind the last element
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t reach = 0;
    fits = fits && strides[d] >= 0;
    if (numel == 0) continue;
    fits =
        fits && !__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) && !__builtin_add_overflow(end, reach, &end);
  }
  fits = fits && !__builtin_add_overflow(end, numel == 0 ? 0 : 1, &end) && !__builtin_mul_overflow(end, itemsize, &end);
  if (!fits || static_cast<uint64_t>(end) > nbytes)
    throw Error("a tensor reaches outside its storage of " + std::to_string(nbytes) + " bytes");
}

}  // namespace

std::string_view typed_storage_name(at::ScalarType dtype) {
  const auto type = std::ranges::find(kTypedStorages, dtype, [](const auto& entry) { return entry.first; });
  return type == kTypedStorages.end() ? std::string_view() : type->second;
}

std::optional<at::ScalarType> dtype_of_typed_storage(std::string_view name) {
  const auto type = std::ranges::find(kTypedStorages, name, [](const auto& entry) { return entry.second; });
  return type == kTypedStorages.end() ? std::nullopt : std::optional(type->first);
}

int64_t checked_numel(const std::vector<int64_t>& sizes) {
  constexpr size_t kMaxDims = 64;
  if (sizes.size() > kMaxDims) throw Error("a tensor of more than 64 dimensions");
  int64_t product = 16;  // room for the largest element
  bool empty = false;
  for (const int64_t size : sizes) {
    if (size < 0) throw Error("a tensor of negative size");
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      throw Error("the size of a tensor does not fit into 64 bits");
    }
  }
  return empty ? 0 : product / 16;
}

at::Tensor dense_tensor(const at::Storage& storage, at::ScalarType dtype, int64_t offset,
                        const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  if (dtype == at::ScalarType::Undefined || c10::isQIntType(dtype))
    throw Error("a tensor of " + torch_name(dtype) + " cannot be rebuilt from this storage");
  check_extent(storage.nbytes(), static_cast<int64_t>(c10::elementSize(dtype)), offset, sizes, strides);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void set_conj(const at::Tensor& tensor) {
  if (!tensor.is_complex()) throw Error("a tensor that is not complex has the conjugate bit");
  tensor._set_conj(true);
}

void require_grad(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (!at::isFloatingType(dtype) && !at::isComplexType(dtype))
    throw Error("a tensor of " + torch_name(dtype) + " requires grad, which only floating and complex ones can");
  tensor.set_requires_grad(true);
}

at::Tensor sparse_coo_tensor(const at::Tensor& indices, const at::Tensor& values, const std::vector<int64_t>& sizes,
                             std::optional<bool> coalesced) {
  checked_numel(sizes);
  compat::validate_unpinned<at::_ops::_validate_sparse_coo_tensor_args>(indices, values, sizes, coalesced);
  return at::_ops::_sparse_coo_tensor_unsafe::call(indices, values, c10::fromIntArrayRefSlow(sizes),
                                                   values.scalar_type(), at::kSparse, at::kCPU, false, coalesced);
}

at::Tensor sparse_compressed_tensor(at::Layout layout, const at::Tensor& compressed, const at::Tensor& plain,
                                    const at::Tensor& values, const std::vector<int64_t>& sizes) {
  checked_numel(sizes);
  compat::validate_unpinned<at::_ops::_validate_sparse_compressed_tensor_args>(compressed, plain, values, sizes,
                                                                               layout);
  return at::_ops::_sparse_compressed_tensor_unsafe::call(compressed, plain, values, c10::fromIntArrayRefSlow(sizes),
                                                          values.scalar_type(), layout, at::kCPU, false);
}

}  // namespace op_tools
