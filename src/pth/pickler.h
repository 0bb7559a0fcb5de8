// Turns a tree of values into a pickle as torch.save writes it, and says which bytes of which storages belong to it.
// For the writer of .pth files; thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/value.h"

namespace op_tools {

// A storage of the tree, trimmed to the bytes that the tree's tensors show.
struct PickledStorage {
  at::Storage storage;  // holds the memory
  size_t begin = 0;     // first byte that is written
  size_t size = 0;

  std::string_view payload() const {
    return {size == 0 ? nullptr : static_cast<const char*>(storage.data()) + begin, size};
  }
};

struct Pickled {
  std::string bytes;
  std::vector<PickledStorage> storages;  // that it refers to as "0", "1", ...
};

// Throws Error when a value has no form in a .pth file.
Pickled pickle(const Value& value);

}  // namespace op_tools
