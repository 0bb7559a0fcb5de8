// Which memory is allocated, by place: operator, module, line, phase and device. Fed by the CPU's allocator (any
// thread), by reports of devices' allocators during calls, and by the storages that calls return.
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
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/export.h"
#include "base/sweeps.h"
#include "memory/memory_rows.h"
#include "tensor/cpu_memory.h"
#include "tensor/memory_watch.h"

namespace op_tools {

enum class MemoryPhase : uint8_t { kForward, kBackward, kOptimizer };
const char* to_string(MemoryPhase phase);

// Bytes and blocks of a place or an open call, and their numbers at the last peak of the device.
struct Account {
  int64_t bytes = 0, blocks = 0, peak_bytes = 0;
  uint64_t peak = 0;  // number of the peak that peak_bytes is of

  void change(int64_t by_bytes, int64_t by_blocks, uint64_t current_peak);
  int64_t at(uint64_t current_peak) const { return peak == current_peak ? peak_bytes : bytes; }
};

struct MemoryPlace {
  std::string_view op;                                   // of a place in the table: that place's
  const std::string *module = nullptr, *line = nullptr;  // live until the process ends; nullptr: not known
  std::string stack;
  MemoryPhase phase = MemoryPhase::kForward;
  bool grad_enabled = false;
};

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
  void overwritten(const Overwrite& one) override;
  void reported(OpenCall& call, const MemoryReport& report);

  // Storages of tensors that a call is given and returns. Memory without reports is followed by its storage; that
  // of a device in CPU memory is the device's.
  void given(const c10::Storage& storage, bool parameter);
  void returned(OpenCall& call, const c10::Storage& storage);

  void add(const std::vector<Overwrite>& found, const MemoryPlace& writer);
  void step_ended(int64_t next);

  struct Snapshot {
    std::vector<MemoryRow> rows;  // most bytes alive first
    std::vector<OverwriteRow> overwrites;
    std::vector<BlockRow> blocks;
    std::vector<DeviceMemoryRow> devices;
    int64_t steps = 0;
  };
  static constexpr size_t kMostBlocks = 20'000;  // in a snapshot
  static constexpr int64_t kFewestSteps = 4;     // that say whether a place grows
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
  struct Place {
    std::string op;
    MemoryPlace what;
    uint8_t device = 0;
    bool parameter = false;
    Account account;
    int64_t allocations = 0, allocated_bytes = 0;
    uint32_t first_step = 0, last_step = 0;
    std::string freed_by;
    struct Sample {
      int64_t blocks = 0, bytes = 0;
    };
    std::vector<Sample> samples;  // at ends of steps
    // The judgement while the program ran: at its end, functions have freed their variables.
    bool leaked = false, leaked_by_bytes = false;
  };
  // Of the blocks of a place that are alive: different steps in which they were allocated, and most remade_steps.
  struct Ages {
    int64_t birth_steps = 0, remade_steps = 0;
    bool by_bytes() const { return birth_steps < 3; }  // else the number of blocks says more: their sizes may vary
    int64_t steps() const { return std::max(birth_steps, remade_steps + 1); }
  };
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

  // Equal strings may lie at several addresses, but an address has a single string: a place is found without reading
  // it.
  struct Addresses {
    size_t op = 0;  // its hash
    const void *module = nullptr, *line = nullptr;
    uint32_t mode = 0;  // phase, device and other keys of places
    bool operator==(const Addresses&) const = default;
  };
  struct HashAddresses {
    size_t operator()(const Addresses& one) const;
  };
  static Addresses addresses_of(const MemoryPlace& what, uint8_t device, bool parameter);
  static std::string key_of(const MemoryPlace& what, const Addresses& addresses);
  bool is_new(const OpenCall& call, const MemoryPlace& place) const;
  uint8_t device_locked(c10::Device device);
  uint32_t place_locked(const MemoryPlace& what, uint8_t device, bool parameter);
  uint32_t new_place_locked(const MemoryPlace& what, uint8_t device, bool parameter, std::string key);
  uint32_t outside_locked(const char* op, uint8_t device, bool parameter, MemoryPhase phase = MemoryPhase::kForward);
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
  static Ages ages_of(const std::vector<const Blocks::value_type*>& blocks);
  // Bytes per step of a place that grows in the second half of the steps until the end.
  std::optional<double> growth_locked(const Place& place, bool by_bytes) const;
  bool leaks_locked(const Place& place, const Ages& ages) const;
  void judge_locked(const Place& place, const Ages& ages, MemoryRow* row) const;
  MemoryRow row_locked(const Place& place) const;
  OpenCall* current() const;  // of this thread and table

  mutable std::mutex mutex_;
  const bool backtrace_;
  Blocks blocks_;
  std::deque<Place> places_;  // stay where they are: a new place is often like an existing place
  std::unordered_map<std::string, uint32_t> place_of_;
  ska::flat_hash_map<Addresses, uint32_t, HashAddresses> place_at_;
  std::vector<DeviceState> devices_;
  std::vector<OverwriteRow> overwrites_;
  uint32_t step_ = 0;
  size_t samples_ = 0;            // in each place that is old enough
  uint32_t sample_interval_ = 1;  // steps
  Sweeps sweeps_;
};

MemoryPhase current_memory_phase();

}  // namespace op_tools
