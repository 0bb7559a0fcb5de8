// The state of a pickle's machine while a tree is read: finished values, and containers in the making. For the
// reader of .pth files; one thread. All functions throw Error when a file has something else than must be there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/value.h"

namespace op_tools::pickled {

// A finished value, or a node.
struct Node;
struct Item {
  Value value;
  std::shared_ptr<Node> node;  // when set, `value` is unused
};

// A container in the making, or a thing that only exists while unpickling (a global, a storage).
struct Node {
  enum class Kind : uint8_t { kTuple, kList, kDict, kSet, kNamedTuple, kSlice, kGlobal, kStorage };

  explicit Node(Kind kind, std::string name = {}) : kind(kind), name(std::move(name)) {}

  Kind kind;
  bool frozen = false;  // it lies in another node and may not grow any more: no cycles, and depth and size are final
  int depth = 1;
  uint64_t size = 1;        // values in it, counted as often as a walk visits them
  std::string name;         // global: module.name; named tuple: its type
  std::vector<Item> items;  // dict: key, value, key, value
  at::Storage storage;
  at::ScalarType dtype = at::ScalarType::Undefined;  // of a typed storage
  bool is_built = false;
  Value built;
};
using Kind = Node::Kind;

// Bounds the cost of a hostile file; far above real calls.
constexpr uint64_t kMaxTreeSize = uint64_t{1} << 23;  // values visited in a walk

Item new_node(Kind kind, std::string name = {});
// Puts `child` into `parent`, which must not lie in another node yet; bounds the depth and size of the result.
void adopt(Node& parent, Item child);

// `expected` stands in the Error: "a tuple of arguments".
const Node& node_of(const Item& item, Kind kind, const char* expected);
const std::vector<Item>& arguments_of(const Item& item);
template <class T>
const T& as(const Item& item, const char* expected) {
  const T* value = item.node ? nullptr : item.value.get_if<T>();
  if (value == nullptr) throw Error(std::string("data.pkl has something else where ") + expected + " must be");
  return *value;
}
const std::string& text_of(const Item& item);
int64_t int_of(const Item& item);
const at::Tensor& tensor_of(const Item& item);
std::vector<int64_t> ints_of(const Item& item);

}  // namespace op_tools::pickled
