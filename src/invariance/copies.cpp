#include "invariance/copies.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <numeric>
#include <utility>

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

// The dimension that gets room in kGaps, as its place in the order of memory.
size_t place_of_gaps(const std::vector<int64_t>& order) {
  return order.size() == 2 ? 1 : order.size() - 2;
}

at::Tensor with_gaps(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return dense_copy(tensor, tensor);
  const std::vector<int64_t> order = memory_order(tensor);
  const int64_t dim = order[place_of_gaps(order)], size = tensor.size(dim);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim)] *= 2;
  const at::Tensor plain = on_cpu(tensor.detach()), memory = dense(sizes, order, plain);
  memory.narrow(dim, size, size).copy_(plain);
  const at::Tensor copy = memory.narrow(dim, 0, size);
  copy.copy_(plain);
  return copy;
}

at::Tensor with_other_alignment(const at::Tensor& tensor) {
  const int64_t places = std::max<int64_t>(1, 64 / static_cast<int64_t>(tensor.itemsize()));
  const int64_t offset = (tensor.storage_offset() + 1) % places;
  const at::Tensor memory = at::empty({tensor.numel() + offset}, tensor.options().requires_grad(false));
  const at::Tensor copy = memory.as_strided(tensor.sizes(), tensor.strides(), offset);
  copy.copy_(tensor.detach());
  return copy;
}

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor._is_zerotensor() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.numel() > 0 && tensor.dim() > 0;
}

// Undefined: there are no such places.
at::Tensor changed(const at::Tensor& elements, const TensorChange& change) {
  const int64_t dim = change.dim < 0 ? change.dim + elements.dim() : change.dim;
  if (dim < 0 || dim >= elements.dim()) return {};
  if (change.kind == TensorChange::Kind::kJoin) {
    if (elements.dim() < 2) return {};
    std::vector<int64_t> sizes = elements.sizes().vec();
    sizes[1] *= std::exchange(sizes[0], 1);
    return elements.reshape(sizes);
  }
  if (change.kind == TensorChange::Kind::kPack) {
    if (elements.dim() < 3) return {};
    return elements.movedim(0, -3).flatten(-3, -2).unsqueeze(0);
  }
  if (change.kind == TensorChange::Kind::kFill) {
    std::vector<int64_t> sizes = elements.sizes().vec();
    sizes[static_cast<size_t>(dim)] = change.count;
    const at::Tensor more = at::full(sizes, change.number, elements.options());
    return change.in_front ? at::cat({more, elements}, dim) : at::cat({elements, more}, dim);
  }
  const auto is_there = [&](int64_t place) { return place >= 0 && place < elements.size(dim); };
  if (!std::all_of(change.places.begin(), change.places.end(), is_there)) return {};
  const at::Tensor index = at::empty({static_cast<int64_t>(change.places.size())}, at::kLong);
  std::copy(change.places.begin(), change.places.end(), index.mutable_data_ptr<int64_t>());
  return elements.index_select(dim, index);
}

}  // namespace

TensorChange places_of(int64_t dim, std::vector<int64_t> places) {
  return {.kind = TensorChange::Kind::kPlaces, .dim = dim, .places = std::move(places)};
}

std::vector<int64_t> first_places(int64_t count) {
  std::vector<int64_t> places(static_cast<size_t>(count));
  std::iota(places.begin(), places.end(), 0);
  return places;
}

at::Tensor dense_copy(const at::Tensor& elements, const at::Tensor& like) {
  const at::Tensor plain = on_cpu(elements.detach());
  const at::Tensor copy = dense(plain.sizes(), memory_order(like), plain);
  copy.copy_(plain);
  return copy;
}

at::Tensor changed_copy(const at::Tensor& tensor, const TensorChanges& changes) {
  if (changes.size() == 1 && changes[0].kind == TensorChange::Kind::kGaps) return with_gaps(tensor);
  if (changes.size() == 1 && changes[0].kind == TensorChange::Kind::kAlignment) return with_other_alignment(tensor);
  at::Tensor elements = on_cpu(tensor.detach());
  for (const TensorChange& change : changes) {
    elements = changed(elements, change);
    if (!elements.defined()) return {};
  }
  return dense_copy(elements, tensor);
}

// Not of rows of a single element: statistics of rows, which kernels read as they wrote them.
bool can_have_gaps(const at::Tensor& tensor) {
  if (!has_plain_memory(tensor) || tensor.dim() < 2) return false;
  if (!tensor.is_non_overlapping_and_dense()) return true;
  const std::vector<int64_t> order = memory_order(tensor);
  if (tensor.size(order.back()) == 1) return false;
  const auto is_outer = [&](int64_t dim) { return tensor.size(dim) > 1; };
  return std::any_of(order.begin(), order.begin() + static_cast<int64_t>(place_of_gaps(order)), is_outer);
}

bool can_have_other_alignment(const at::Tensor& tensor) {
  return has_plain_memory(tensor) && tensor.is_non_overlapping_and_dense();
}

}  // namespace op_tools
