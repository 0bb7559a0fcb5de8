#include "pth/pickle_node.h"

#include <algorithm>

#include "pth/pth.h"

namespace op_tools::pickled {

Item new_node(Kind kind, std::string name) {
  return {Value(), std::make_shared<Node>(kind, std::move(name))};
}

void adopt(Node& parent, Item child) {
  if (child.node) {
    child.node->frozen = true;
    parent.depth = std::max(parent.depth, child.node->depth + 1);
    parent.size += child.node->size;
  } else {
    ++parent.size;
  }
  // After freezing: a list that is put into itself is refused here.
  if (parent.frozen) throw Error("data.pkl changes a value that lies in another value already");
  if (parent.depth > kMaxPthDepth)
    throw Error("values lie more than " + std::to_string(kMaxPthDepth) + " deep in each other");
  if (parent.size > kMaxTreeSize) throw Error("data.pkl unfolds to far more values than it has bytes");
  parent.items.push_back(std::move(child));
}

const Node& node_of(const Item& item, Kind kind, const char* expected) {
  if (!item.node || item.node->kind != kind)
    throw Error(std::string("data.pkl has something else where ") + expected + " must be");
  return *item.node;
}
const std::vector<Item>& arguments_of(const Item& item) {
  return node_of(item, Kind::kTuple, "a tuple of arguments").items;
}
const std::string& text_of(const Item& item) {
  return as<std::string>(item, "a text");
}
int64_t int_of(const Item& item) {
  return as<int64_t>(item, "an integer");
}
const at::Tensor& tensor_of(const Item& item) {
  return as<at::Tensor>(item, "a tensor");
}
std::vector<int64_t> ints_of(const Item& item) {
  if (const auto* size = item.node ? nullptr : item.value.get_if<Size>()) return size->sizes;
  std::vector<int64_t> numbers;
  for (const auto& number : arguments_of(item)) numbers.push_back(int_of(number));
  return numbers;
}

}  // namespace op_tools::pickled
