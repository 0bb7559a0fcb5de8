// All memory that torch allocates on the CPU while there is a listener: an allocator that stands before torch's own, or
// the program's, and is taken out again with the last listener. The simulated device's memory is CPU memory, so
// it is seen as well.
//
// Allocations of op_tools itself inside of hooks are not reported. Any thread; listeners are called on the thread that
// allocates or frees, with no lock of ours held. A forked child has no listeners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/export.h"

namespace op_tools {

// Bytes outside of a block that were written.
struct Overwrite {
  const void* address = nullptr;  // of the block
  size_t block_bytes = 0;
  size_t bytes = 0;      // how many differ
  int64_t offset = 0;    // of the first, from the block's beginning: negative, or block_bytes and more
  size_t operators = 1;  // that ran, with the present one, since the block was known to be whole
};

class OP_TOOLS_API CpuMemoryListener {
 public:
  virtual ~CpuMemoryListener() = default;
  virtual void allocated(const void* address, size_t bytes) = 0;
  virtual void freed(const void* address) = 0;
  virtual void overwritten(const Overwrite&) {}  // found when the block is freed; before freed()
};

// While a watch lives, its listener is called. `guard`: blocks allocated meanwhile stand between bytes of a known
// pattern.
class OP_TOOLS_API CpuMemoryWatch {
 public:
  CpuMemoryWatch(std::shared_ptr<CpuMemoryListener> listener, bool guard);
  ~CpuMemoryWatch();
  CpuMemoryWatch(const CpuMemoryWatch&) = delete;
  CpuMemoryWatch& operator=(const CpuMemoryWatch&) = delete;

  // False: another allocator was put in our place, and may hand on to ours; it is not touched.
  bool sees() const;

 private:
  const std::shared_ptr<CpuMemoryListener> listener_;
  const bool guard_;
};

// Allocations of a device's kernel on this thread belong to the thread's program, unless a hook of ours called it: a
// kernel excludes the same keys from dispatch as a hook does. Made before these are excluded.
class OP_TOOLS_API KernelMemory {
 public:
  KernelMemory();
  ~KernelMemory();
  KernelMemory(const KernelMemory&) = delete;
  KernelMemory& operator=(const KernelMemory&) = delete;

 private:
  const bool outer_;
};

// Blocks that are allocated now stand between bytes of a known pattern, which may be written to.
OP_TOOLS_API bool cpu_memory_is_guarded();

// After an operator: looks at the pattern around the guarded blocks that it was given or made, and around some hundred
// others in turn. Repairs it, so that a write is reported once.
OP_TOOLS_API std::vector<Overwrite> overwrites(const std::vector<const void*>& of_operator);
// Around every guarded block, after the last operator.
OP_TOOLS_API std::vector<Overwrite> overwrites();

}  // namespace op_tools
