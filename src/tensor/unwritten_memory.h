// Memory of torch.empty that a program fills part by part: which of its elements were written since it was allocated.
// Known by the storage: of a factory's result torch makes another tensor, and would make a copy of a tensor whose
// counter of versions is held elsewhere. Called under InternalGuard. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/export.h"
#include "base/sweeps.h"

namespace op_tools {

// How much of a tensor was written since its memory was allocated.
enum class WrittenPart : uint8_t {
  kNotWatched,  // its memory is none of these: all of it, as far as is known
  kAll,
  kSome,
  kNone,
  kUnknown,
};

struct WrittenElements {
  WrittenPart part = WrittenPart::kNotWatched;
  at::Tensor flags = {};  // kSome: on the CPU, of the tensor's sizes; true: written

  bool is_whole() const { return part == WrittenPart::kNotWatched || part == WrittenPart::kAll; }
};

class OP_TOOLS_API UnwrittenMemory {
 public:
  // The tensor's memory was allocated, and nothing is written there.
  void add(const at::Tensor& tensor);
  // The program wrote it, where no operator shows that.
  void forget(const at::Tensor& tensor) {
    if (tensor.has_storage()) erase(tensor.storage().unsafeGetStorageImpl());
  }
  bool is_empty() const { return memories_.empty(); }
  bool watches(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  // Did no call write any of the tensor?
  bool holds(const at::Tensor& tensor) const;
  WrittenElements shown_by(const at::Tensor& tensor) const;
  // After a call that wrote these elements of the tensor. Memory that is written whole is watched no more.
  void written(const at::Tensor& tensor, const WrittenElements& elements);

 private:
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t unit;           // bytes that share a flag
    int64_t version;        // after the last write that was seen
    at::Tensor flags = {};  // by unit; undefined: none is written
    int64_t unwritten = 0;  // how many flags are false
    bool is_unknown = false;
  };
  const Memory* find(const at::Tensor& tensor) const;
  void erase(const c10::StorageImpl* storage);
  void sweep();
  bool make_flags(Memory& memory, int64_t bytes);

  std::unordered_map<const c10::StorageImpl*, Memory> memories_;
  int64_t flags_ = 0;  // of all memories
  Sweeps sweeps_;
};

// The tensor with zeros in the place of the elements whose flags are false; on the CPU, as no operator of a device may
// be trusted to do that.
OP_TOOLS_API at::Tensor written_alone(const at::Tensor& tensor, const at::Tensor& flags);

}  // namespace op_tools
