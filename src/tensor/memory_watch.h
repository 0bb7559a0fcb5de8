// The allocations of this thread's operators while a watch lives, on any device whose allocator reports to torch's
// profiler (the CPU's, CUDA's and those made like it). torch has a single place for such a listener: while
// torch.profiler is on in this thread, nothing is seen; watches of ours see allocations inside of each other.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/export.h"
#include "base/sweeps.h"

namespace op_tools {

// A report of an allocator. `bytes` is negative where memory was freed.
struct MemoryReport {
  void* address;
  int64_t bytes;
  int64_t total;     // bytes that are allocated now, by the allocator's count
  int64_t reserved;  // and bytes that it has of the device's memory in all, unused memory included
  c10::Device device;
};

// Allocates a little on the device: does its allocator report? An exception of the allocation passes.
OP_TOOLS_API bool reports_memory(c10::Device device);

class OP_TOOLS_API MemoryWatch {
 public:
  using Listen = std::function<void(const MemoryReport&)>;
  explicit MemoryWatch(Listen listen = {});  // called on this thread, with whatever lock the allocator holds
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  bool sees() const { return listener_ != nullptr; }
  int64_t allocated() const;  // bytes in all
  int64_t peak() const;       // most bytes at once above the bytes at the start

 private:
  friend class AliveMemory;
  class Listener;
  std::shared_ptr<Listener> listener_;
  std::optional<c10::DebugInfoGuard> guard_;
};

// The memory that calls made and that is still in use. Holds none of it. Thread-safe.
class OP_TOOLS_API AliveMemory {
 public:
  // `owner`: a number of the call's operator or place, given back below.
  void add(const c10::Storage& storage, uint32_t owner);
  struct Alive {
    uint32_t owner = 0;
    int64_t count = 0, bytes = 0;
  };
  std::vector<Alive> alive() const;  // by owner, most bytes first

 private:
  struct OwnedStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint32_t owner;
    const void* block;
    uint64_t note;  // torch's note of the block's size (memory_watch.cpp); 0: none
  };
  void sweep();  // with the mutex

  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, OwnedStorage> storages_;
  Sweeps sweeps_;
};

}  // namespace op_tools
