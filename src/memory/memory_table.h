// The blocks of memory that are allocated, and the places (MemoryPlaces) that allocated them. Fed by the CPU's
// allocator (any thread), by reports of devices' allocators during calls, and by the storages that calls return.
//
// An event costs a lookup: the figures of every place at the peak are not copied at each new peak, but noted by a place
// when it changes for the first time after a peak (Account). Memory that a call allocates belongs to the call until it
// ends and its place is known. One lock, never held while anything else is called.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/Backtrace.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/sweeps.h"
#include "memory/memory_places.h"
#include "memory/memory_rows.h"
#include "tensor/cpu_memory.h"
#include "tensor/memory_watch.h"

namespace op_tools {

class OP_TOOLS_API MemoryTable final : public CpuMemoryListener {
 public:
  explicit MemoryTable(bool backtrace) : backtrace_(backtrace) {}

  // A call of this thread in progress: begins when it is made, ends with end() or when it dies.
  class OP_TOOLS_API OpenCall {
   public:
    OpenCall(MemoryTable& table, std::string_view op);
    ~OpenCall();
    OpenCall(const OpenCall&) = delete;
    OpenCall& operator=(const OpenCall&) = delete;
    bool any() const { return any_.load(std::memory_order_relaxed); }  // it allocated, or was given
    void takes(const c10::Storage& storage);                           // of an input

   private:
    friend class MemoryTable;
    MemoryTable& table_;
    const std::string_view op_;
    OpenCall* outer_;  // of this thread
    bool open_ = true;
    std::atomic<bool> any_{false};  // first set by this thread: only then others may write the members below
    c10::SmallVector<const void*, 4> blocks_;
    c10::SmallVector<const void*, 4> inputs_;
    struct OnDevice {
      uint8_t device;
      Account account{};
      int64_t allocations = 0, bytes = 0;
      uint32_t place = 0;  // when the call has ended
    };
    OnDevice& on(uint8_t device);
    c10::SmallVector<OnDevice, 1> on_;
    c10::Backtrace backtrace_;
  };
  void end(OpenCall& call, MemoryPlace place);

  void allocated(const void* address, size_t bytes) override;
  void freed(const void* address) override;
  void overwritten(const Overwrite& overwrite) override;
  void reported(OpenCall& call, const MemoryReport& report);

  // Storages of tensors that a call is given and returns. Memory without reports is followed by its storage; that
  // of a device in CPU memory is the device's.
  void takes(const c10::Storage& storage, bool parameter);
  void returned(OpenCall& call, const c10::Storage& storage);

  void add(const std::vector<Overwrite>& overwrites, const MemoryPlace& writer);
  void step_ended(int64_t next);

  struct Snapshot {
    std::vector<MemoryRow> rows;  // most bytes alive first
    std::vector<OverwriteRow> overwrites;
    std::vector<BlockRow> blocks;
    std::vector<DeviceMemoryRow> devices;
    int64_t steps = 0;
  };
  static constexpr size_t kMostBlocks = 20'000;  // in a snapshot
  Snapshot snapshot(bool cpu);
  size_t overwrites() const;

 private:
  struct Block {
    size_t bytes = 0;
    uint32_t step = 0;
    uint32_t place = 0;
    // Earlier steps in which this place made the block's parts: x = cat([x, new]) is a single block all the time.
    uint32_t remade_steps = 0;
    uint8_t device = 0;
    bool exact = false;        // it is CPU memory, whose allocator tells when it is freed
    OpenCall* call = nullptr;  // that allocated it and has not ended
    // Of a device: the block is gone when this is, whatever the work that is queued still holds.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  };
  using Blocks = ska::flat_hash_map<const void*, Block>;
  struct DeviceState {
    c10::Device device{c10::kCPU};
    int64_t bytes = 0, peak_bytes = 0;
    uint64_t peak = 1;
    uint32_t peak_step = 0;
    std::string peak_op;
    bool reports = false;
    bool follows_storages = false;  // freed blocks are known after a sweep
    std::optional<int64_t> told_bytes, told_peak_bytes;
    // The bytes of its allocator in all, the most, and the bytes of the most that no tensor used when it was reached.
    std::optional<int64_t> reserved_bytes, reserved_peak_bytes, unused_bytes;
  };

  bool is_new(const OpenCall& call, const MemoryPlace& place) const;
  uint8_t device_locked(c10::Device device);
  // Of an open call, or of a place.
  Account& account_locked(const Block& block);
  void change_locked(const Block& block, int64_t sign);
  void count_locked(const Block& block, int64_t sign);
  void note_peak_locked(const Block& block);
  void add_locked(const void* address, Block block);
  void remove_locked(Blocks::iterator block);
  void follow_locked(const c10::Storage& storage, Block block);
  void sweep_locked();
  uint32_t remade_steps_locked(const OpenCall& call, uint32_t place) const;
  using BlocksOfPlaces = std::vector<std::vector<const Blocks::value_type*>>;
  BlocksOfPlaces blocks_of_places_locked() const;  // without those of open calls
  static BlockAges ages_of(const std::vector<const Blocks::value_type*>& blocks);
  MemoryRow row_locked(const PlaceFigures& figures) const;
  OpenCall* current() const;  // of this thread and table

  mutable std::mutex mutex_;
  const bool backtrace_;
  Blocks blocks_;
  MemoryPlaces places_;
  std::vector<DeviceState> devices_;
  std::vector<OverwriteRow> overwrites_;
  uint32_t step_ = 0;
  Sweeps sweeps_;
};

}  // namespace op_tools
