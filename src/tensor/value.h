// An argument or result of an operator call, whatever source it came from: a dispatcher stack (IValue), a Python
// object, a file. A tree of plain values; containers are shared (copying a Value is cheap), and treated as immutable
// once built. Tensors are held as they are: the tree neither copies nor detaches them.
// Not thread-safe to build, safe to read from many threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/QScheme.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/export.h"

namespace op_tools {

struct Value;
using Values = std::vector<Value>;

struct None {};
struct Ellipsis {};
struct List {
  std::shared_ptr<const Values> items;
};
struct Tuple {
  std::shared_ptr<const Values> items;
};
// A named tuple (torch.return_types.max): a tuple everywhere but in Python, where `type` names its class.
struct NamedTuple {
  std::shared_ptr<const Values> items;
  std::string type;
};
struct Set {
  std::shared_ptr<const Values> items;
};
struct Dict {
  std::shared_ptr<const std::vector<std::pair<Value, Value>>> items;
};  // insertion order
struct Slice {
  std::shared_ptr<const Values> items;
};  // start, stop, step
struct Size {
  std::vector<int64_t> sizes;
};  // torch.Size
struct Bytes {
  std::string bytes;
};
struct Generator {
  c10::Device device;
  at::Tensor state;
};  // state: uint8 CPU tensor, as Generator.get_state()
// A value that has no form in a file: a callable, a nested tensor, an int beyond 64 bits. `why` is for people.
struct Unsupported {
  std::string type;
  std::string why;
};

using ValueVariant = std::variant<None, bool, int64_t, double, c10::complex<double>, std::string, at::Tensor,
                                  at::ScalarType, c10::Device, at::Layout, at::MemoryFormat, at::QScheme, Size, Slice,
                                  Ellipsis, List, Tuple, NamedTuple, Dict, Set, Bytes, Generator, Unsupported>;

struct Value : ValueVariant {
  using ValueVariant::ValueVariant;
  Value() : ValueVariant(None{}) {}
  Value(const char* text) : ValueVariant(std::string(text)) {}
  Value(int number) : ValueVariant(static_cast<int64_t>(number)) {}
  // An undefined tensor is None, as in Python.
  Value(at::Tensor tensor) : ValueVariant(tensor.defined() ? ValueVariant(std::move(tensor)) : ValueVariant(None{})) {}

  const ValueVariant& variant() const { return *this; }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&variant());
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(variant());
  }
};

OP_TOOLS_API Value make_list(Values items);
OP_TOOLS_API Value make_tuple(Values items);
OP_TOOLS_API Value make_dict(std::vector<std::pair<Value, Value>> items);

// The items of a List, Tuple, NamedTuple or Set; nullptr for any other kind.
OP_TOOLS_API const Values* sequence_items(const Value& value);
// The value under a string key; nullptr when `dict` is no Dict or has no such key.
OP_TOOLS_API const Value* find_key(const Value& dict, std::string_view key);

// Every tensor of the tree in reading order (dict values in insertion order, slices
// included). This order defines the indices of grad_inputs, grad_outputs and of messages.
OP_TOOLS_API void for_each_tensor(const Value& value, const std::function<void(const at::Tensor&)>& visit);
OP_TOOLS_API std::vector<at::Tensor> flatten_tensors(const Value& value);
// The same tree with each tensor replaced by visit(tensor); shares every subtree without tensors.
OP_TOOLS_API Value map_tensors(const Value& value, const std::function<Value(const at::Tensor&)>& visit);

// The first value of the tree that has no form in a file; nullptr when there is none.
OP_TOOLS_API const Unsupported* first_unsupported(const Value& value);

// The names that Python prints ("torch.float32", "torch.sparse_coo", "torch.channels_last", "torch.per_tensor_affine"),
// and back. Reading takes them without "torch." too, and dtypes by either name (float, float32); nullopt when there is
// none.
OP_TOOLS_API std::string torch_name(at::ScalarType dtype);
OP_TOOLS_API std::string torch_name(at::Layout layout);
OP_TOOLS_API std::string torch_name(at::MemoryFormat format);
OP_TOOLS_API std::string torch_name(at::QScheme scheme);
OP_TOOLS_API std::optional<at::ScalarType> dtype_from_name(std::string_view name);
OP_TOOLS_API std::optional<at::Layout> layout_from_name(std::string_view name);
OP_TOOLS_API std::optional<at::MemoryFormat> memory_format_from_name(std::string_view name);
OP_TOOLS_API std::optional<at::QScheme> qscheme_from_name(std::string_view name);

// A line for people: tensors as {'shape': ..., 'stride': ..., 'numel': ..., 'dtype': ..., 'device': ...,
// 'requires_grad': ..., 'layout': ..., 'data': pointer}, long sequences cut.
OP_TOOLS_API std::string describe(const Value& value);

}  // namespace op_tools
