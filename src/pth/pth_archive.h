// The zip of a .pth file: records by name, each checked against its CRC before it is used. For the reader of .pth
// files; one thread at a time. All functions throw Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "pth/zip.h"

namespace op_tools {

class PthArchive {
 public:
  // `owner`: keeps `bytes` alive as long as a storage points into them; nullptr: storages are copied out.
  PthArchive(std::string_view bytes, std::shared_ptr<const void> owner);

  std::string_view record(const std::string& name);
  // The storage of data/<key>; the same object for the same key, so that tensors that shared memory
  // share it again.
  const at::Storage& storage(const std::string& key);

 private:
  void find_root();
  at::Storage load_storage(std::string_view payload) const;

  MemorySource source_;
  std::string_view bytes_;
  std::shared_ptr<const void> owner_;
  std::unordered_map<std::string, ZipEntry> entries_;
  std::string root_;
  uint64_t handed_out_ = 0;
  std::unordered_map<std::string, at::Storage> storages_;
};

}  // namespace op_tools
