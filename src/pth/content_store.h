// Bytes that many calls share (weights are an input of every step), stored once by their content. A call's file then
// has, in the tensor's place, a tagged dict that says where its bytes are and how the tensor lies in them:
//
//   {"__tensor__": {"content": "<32 hexadecimal digits>", "dtype": torch.float32, "shape": (..), "stride": (..),
//                   "offset": 0, "storage": 0, "tensor": 1, "requires_grad": True}}
//
// "content" is a hash of the bytes and the name of their file; "storage" and "tensor" are numbers within the file:
// values that shared memory, or were the same object, do so again when they are read. Small storages stay in the call's
// own file.
//
// The content alone decides. Version counters would save hashing, but they do not see writes through .data,
// through numpy or by a kernel of the user's own: a call would show bytes that it never had.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tensor/value.h"

namespace op_tools {

// The writing side. One thread at a time.
class ContentWriter {
 public:
  // Stores bytes (a one-dimensional uint8 tensor on the values' own memory) under the name of their content; throws
  // when that fails. Called once per content.
  using Store = std::function<void(const std::string& content, const at::Tensor& bytes)>;
  explicit ContentWriter(Store store) : store_(std::move(store)) {}

  // The same tree with tensors of large storages replaced by references, whose bytes are stored when it returns.
  Value share(const Value& value);

 private:
  struct Content {
    uint64_t low, high;
    bool operator==(const Content&) const = default;
  };
  struct HashOfContent {
    size_t operator()(const Content& content) const { return content.low; }
  };

  std::string store_content(const at::Tensor& bytes);

  const Store store_;
  std::unordered_set<Content, HashOfContent> stored_;  // some 40 bytes for each content of the run
};

// The reading side, for the references of a file.
class ContentReader {
 public:
  // The bytes of a content: a one-dimensional uint8 tensor, whose changes stay in this process.
  using Fetch = std::function<at::Tensor(const std::string& content)>;
  explicit ContentReader(Fetch fetch) : fetch_(std::move(fetch)) {}

  static constexpr const char* kTag = "__tensor__";
  // The tensor that a tagged dict refers to; nullopt when the dict only looks like one. Throws Error when its bytes are
  // missing or too few.
  std::optional<at::Tensor> tensor(const Value& reference);

 private:
  // A separate storage for each number. Those of a content share memory until they are written to (mapped bytes
  // do so by themselves): a small file may refer to a content many thousand times.
  at::Storage storage_of(const std::string& content);

  const Fetch fetch_;
  std::unordered_map<std::string, at::Storage> contents_;
  std::unordered_map<int64_t, std::pair<std::string, at::Storage>> storages_;  // by number: content, bytes
  std::unordered_map<int64_t, at::Tensor> tensors_;                            // by number
};

// Whether it can be the name of a content: 32 hexadecimal digits.
bool is_content_name(std::string_view name);

}  // namespace op_tools
