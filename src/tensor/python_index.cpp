#include "tensor/python_index.h"

#include <ATen/TensorIndexing.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <vector>

#include "base/error.h"

namespace op_tools {
namespace {

using at::indexing::TensorIndex;

// A list of numbers, or of such lists, is a tensor to Python: its elements in order, and the sizes
// of its levels.
struct NestedNumbers {
  std::vector<int64_t> sizes;
  std::vector<int64_t> numbers;
  bool all_bool = true;
  bool regular = true;

  void add(const Value& value, size_t depth) {
    if (const auto* flag = value.get_if<bool>()) {
      numbers.push_back(*flag);
    } else if (const auto* number = value.get_if<int64_t>()) {
      numbers.push_back(*number);
      all_bool = false;
    } else if (const Values* items = sequence_items(value)) {
      const auto size = static_cast<int64_t>(items->size());
      if (depth == sizes.size()) sizes.push_back(size);
      regular = regular && sizes[depth] == size;
      for (const Value& item : *items) add(item, depth + 1);
      return;
    } else {
      regular = false;
    }
    regular = regular && depth == sizes.size();
  }

  at::Tensor tensor() const {
    const bool flags = all_bool && !numbers.empty();
    at::Tensor result = at::empty(sizes, flags ? at::kBool : at::kLong);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (flags)
        result.mutable_data_ptr<bool>()[i] = numbers[i] != 0;
      else
        result.mutable_data_ptr<int64_t>()[i] = numbers[i];
    }
    return result;
  }
};

std::optional<c10::SymInt> slice_bound(const Value& value) {
  if (value.is<None>()) return std::nullopt;
  if (const auto* number = value.get_if<int64_t>()) return c10::SymInt(*number);
  if (const auto* tensor = value.get_if<at::Tensor>(); tensor && tensor->numel() == 1) {
    return c10::SymInt(tensor->item().toLong());
  }
  throw Error("a slice bound is " + describe(value) + ", which is no integer");
}

TensorIndex to_index(const Value& value, const at::Tensor& self) {
  if (value.is<None>()) return std::nullopt;
  if (value.is<Ellipsis>()) return at::indexing::Ellipsis;
  if (const auto* flag = value.get_if<bool>()) return TensorIndex(*flag);
  if (const auto* number = value.get_if<int64_t>()) return TensorIndex(*number);
  if (const auto* tensor = value.get_if<at::Tensor>()) return TensorIndex(*tensor);
  if (const auto* slice = value.get_if<Slice>(); slice && slice->items->size() == 3) {
    const Values& bounds = *slice->items;
    return at::indexing::Slice(slice_bound(bounds[0]), slice_bound(bounds[1]), slice_bound(bounds[2]));
  }
  if (sequence_items(value)) {
    NestedNumbers nested;
    nested.add(value, 0);
    if (nested.regular) return TensorIndex(nested.tensor().to(self.device()));
  }
  throw Error("an index is " + describe(value) + ", which only Python can apply");
}

std::vector<TensorIndex> to_indices(const Value& index, const at::Tensor& self) {
  std::vector<TensorIndex> indices;
  if (index.is<Tuple>() || index.is<NamedTuple>()) {
    for (const Value& item : *sequence_items(index)) indices.push_back(to_index(item, self));
  } else if (const auto* size = index.get_if<Size>()) {
    for (const int64_t extent : size->sizes) indices.emplace_back(extent);
  } else {
    indices.push_back(to_index(index, self));
  }
  return indices;
}

at::Tensor to_tensor(const Value& value, const at::Tensor& self) {
  if (const auto* tensor = value.get_if<at::Tensor>()) return *tensor;
  const auto to_tensor = [&](const at::Scalar& scalar) {
    return at::indexing::scalarToTensor(scalar, self.options(), self.device());
  };
  if (const auto* number = value.get_if<bool>()) return to_tensor(*number);
  if (const auto* number = value.get_if<int64_t>()) return to_tensor(*number);
  if (const auto* number = value.get_if<double>()) return to_tensor(*number);
  if (const auto* number = value.get_if<c10::complex<double>>()) return to_tensor(*number);
  throw Error("the value assigned is " + describe(value) + ", which only Python can assign");
}

}  // namespace

at::Tensor get_item(const at::Tensor& self, const Value& index) {
  return at::indexing::get_item(self, to_indices(index, self));
}

void set_item(const at::Tensor& self, const Value& index, const Value& value) {
  at::indexing::set_item(self, to_indices(index, self), to_tensor(value, self));
}

}  // namespace op_tools
