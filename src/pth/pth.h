// Our own small, strict reader and writer of .pth files: pickle protocol 2 in a stored (uncompressed) zip, as
// torch.save lays it out, opened by torch.load(weights_only=True, mmap=True). Why not torch's own:
// docs/architecture.md.
//
// Writing: tensors must be dense (strided), sparse COO/CSR/CSC/BSR/BSC, on the CPU; storages are written once each and
// trimmed to the byte range that the tree's tensors touch, so strides and aliasing survive and a view of a large
// storage stays small. Slices, Ellipsis, memory formats, generators, named tuples and unsupported things are tagged
// dicts
// ({"__slice__": (a, b, c)}); op_tools.load() turns them back, torch.load gives the dicts.
// Reading: a subset of pickle 2..5 that builds only plain values and tensors, every index checked, bounded depth
// and size, no cycles, CRC verified. Never runs code. Files of Python's torch.save are read too.
// All functions throw Error with the path and the fault.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/links.h"
#include "tensor/value.h"

namespace op_tools {

class ContentReader;

// How deep containers may lie within each other, in writing and in reading: a limit for hostile files, far above real
// calls.
constexpr int kMaxPthDepth = 256;

// The bytes of a .pth file, in pieces that point into the tensors' memory where that is large: no copy is made.
// Valid as long as the object lives (it holds the storages). One thread at a time.
class OP_TOOLS_API EncodedPth {
 public:
  explicit EncodedPth(const Value& value);
  ~EncodedPth();
  EncodedPth(EncodedPth&&) noexcept;
  EncodedPth& operator=(EncodedPth&&) noexcept;

  struct Piece {
    const char* data;
    size_t size;
    uint64_t position = 0;  // in the file
  };
  uint64_t size() const;  // bytes of all pieces together

  // Large tensors are read once: the writer of their bytes computes the sum in the same pass, while they are in the
  // caches, and says so with set_crc (a CRC-32). The others' pieces come after that.
  const std::vector<Piece>& large_pieces() const;
  void set_crc(size_t large_piece, uint32_t crc);
  std::vector<Piece> other_pieces() const;  // headers and all that is small; reads large pieces that have no CRC yet

  const std::vector<Piece>& pieces() const;  // all, in order
  uint32_t crc() const;                      // CRC-32 of all pieces together

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a whole file, or bytes in memory (an entry of a container). `name` stands for the path in messages; `owner`
// keeps `bytes`, which must then be writable, alive as long as a tensor points into them (nullptr: tensors are copied
// out). `shared`: where bytes that lie in other files come from (pth/content_store.h); nullptr: a file that refers
// to such is an Error.
OP_TOOLS_API Value read_pth(const std::string& path, ContentReader* shared = nullptr, Links links = Links::kFollowed);
OP_TOOLS_API Value read_pth(std::string_view bytes, const std::string& name,
                            std::shared_ptr<const void> owner = nullptr, ContentReader* shared = nullptr);

// The device of that name in a file. A name that torch does not know is the backend of some vendor that is not loaded
// here ("npu:1"): PrivateUse1. Error when it cannot be a device's name.
OP_TOOLS_API c10::Device recorded_device(const std::string& name);

}  // namespace op_tools
