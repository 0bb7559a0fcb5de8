// Tensors from the numbers that stand in a file: every size, stride and offset is checked against the memory before a
// tensor shows it. All throw Error when they do not fit. Used by the readers and writers of this folder; thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace op_tools {

// The typed storage class in Python's module torch that the old dtypes have ("FloatStorage"; the same text for each
// call); newer dtypes have none, "", and are rebuilt from untyped storages.
std::string_view typed_storage_name(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_of_typed_storage(std::string_view name);

// Elements of a tensor of these sizes; throws when a size is negative or the product (zeros left out, as torch
// multiplies in any order) does not fit.
int64_t checked_numel(const std::vector<int64_t>& sizes);

// A CPU tensor on the storage; `offset` in elements.
at::Tensor dense_tensor(const at::Storage& storage, at::ScalarType dtype, int64_t offset,
                        const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);
void set_conj(const at::Tensor& tensor);
void require_grad(const at::Tensor& tensor);

// The validation reads every index: nothing later has to trust them.
at::Tensor sparse_coo_tensor(const at::Tensor& indices, const at::Tensor& values, const std::vector<int64_t>& sizes,
                             std::optional<bool> coalesced);
at::Tensor sparse_compressed_tensor(at::Layout layout, const at::Tensor& compressed, const at::Tensor& plain,
                                    const at::Tensor& values, const std::vector<int64_t>& sizes);

}  // namespace op_tools
