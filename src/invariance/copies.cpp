#include "invariance/copies.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>

#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// The dimensions, the outermost in memory first.
std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

at::Tensor dense(c10::IntArrayRef sizes, const std::vector<int64_t>& order, const at::Tensor& like) {
  std::vector<int64_t> strides(order.size(), 1);
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[static_cast<size_t>(*dim)] = stride;
    stride *= std::max<int64_t>(1, sizes[static_cast<size_t>(*dim)]);
  }
  return at::empty_strided(sizes, strides, like.options().device(at::kCPU).requires_grad(false));
}

}  // namespace

at::Tensor dense_copy(const at::Tensor& elements, const at::Tensor& like) {
  const at::Tensor plain = on_cpu(elements.detach());
  const at::Tensor copy = dense(plain.sizes(), memory_order(like), plain);
  copy.copy_(plain);
  return copy;
}

at::Tensor rows_of(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  const at::Tensor index = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), index.mutable_data_ptr<int64_t>());
  return dense_copy(on_cpu(tensor.detach()).index_select(0, index), tensor);
}

at::Tensor copy_with_gaps(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor._is_zerotensor() || tensor.is_conj() ||
      tensor.is_neg() || tensor.numel() == 0 || tensor.dim() < 2) {
    return {};
  }
  if (!tensor.is_non_overlapping_and_dense()) return dense_copy(tensor, tensor);
  const std::vector<int64_t> order = memory_order(tensor);
  if (tensor.size(order.back()) == 1) return {};
  const size_t place = order.size() == 2 ? 1 : order.size() - 2;
  const auto is_outer = [&](int64_t dim) { return tensor.size(dim) > 1; };
  if (std::none_of(order.begin(), order.begin() + static_cast<int64_t>(place), is_outer)) return {};
  const int64_t dim = order[place], size = tensor.size(dim);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim)] *= 2;
  const at::Tensor plain = on_cpu(tensor.detach()), memory = dense(sizes, order, plain);
  memory.narrow(dim, size, size).copy_(plain);
  const at::Tensor copy = memory.narrow(dim, 0, size);
  copy.copy_(plain);
  return copy;
}

}  // namespace op_tools
