#include "tensor/memory_watch.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <map>
#include <utility>

namespace op_tools {

using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

namespace {

// Torch notes the size of each block that is allocated on the CPU while a watch is on, and forgets it when the block is
// freed, if a watch is on then. A note that stays lies beside the block: the C library cannot use the block's place
// again as a whole, and a process grows by each of its tensors. This says which notes there are. Thread-safe; without
// an allocation for each.
class Notes {
 public:
  static Notes& get() {
    static Notes* const notes = new Notes;  // never destroyed: threads may end after it
    return *notes;
  }
  void add(const void* block) {
    const std::lock_guard lock(mutex_);
    notes_[block] = ++last_;
  }
  void remove(const void* block) {
    const std::lock_guard lock(mutex_);
    notes_.erase(block);
  }
  uint64_t of(const void* block) const {  // 0: none
    const std::lock_guard lock(mutex_);
    const auto entry = notes_.find(block);
    return entry == notes_.end() ? 0 : entry->second;
  }

 private:
  mutable std::mutex mutex_;
  ska::flat_hash_map<const void*, uint64_t> notes_;
  uint64_t last_ = 0;
};

}  // namespace

// A profiler that is off: torch takes the object in this place for a profiler's state, and asks it.
class MemoryWatch::Listener final : public ProfilerStateBase {
 public:
  Listener(Listen listen, Listener* outer)
      : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)), listen(std::move(listen)), outer(outer) {}

  void reportMemoryUsage(void* address, int64_t bytes, size_t total, size_t reserved, c10::Device device) override {
    if (device.is_cpu()) bytes > 0 ? Notes::get().add(address) : Notes::get().remove(address);
    now += bytes;
    if (bytes > 0) allocated += bytes;
    peak = std::max(peak, now);
    if (listen) listen({address, bytes, static_cast<int64_t>(total), static_cast<int64_t>(reserved), device});
    if (outer) outer->reportMemoryUsage(address, bytes, total, reserved, device);
  }
  bool memoryProfilingEnabled() const override { return true; }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

  int64_t now = 0, allocated = 0, peak = 0;
  const Listen listen;
  Listener* const outer;  // lives as long as this: watches of a thread nest
};

MemoryWatch::MemoryWatch(Listen listen) {
  auto* const state = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  auto* const outer = dynamic_cast<Listener*>(state);
  if (state && !outer) return;
  listener_ = std::make_shared<Listener>(std::move(listen), outer);
  guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, listener_);
}

MemoryWatch::~MemoryWatch() = default;

bool reports_memory(c10::Device device) {
  const MemoryWatch watch;
  const at::Tensor probe = at::empty({1024}, at::TensorOptions().device(device));
  return watch.allocated() >= static_cast<int64_t>(probe.nbytes());
}

int64_t MemoryWatch::allocated() const {
  return listener_ ? listener_->allocated : 0;
}
int64_t MemoryWatch::peak() const {
  return listener_ ? listener_->peak : 0;
}

void AliveMemory::add(const c10::Storage& storage, uint32_t owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  // An address in the map is not reused: the weak reference reserves it.
  const void* const block = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  storages_.try_emplace(storage.unsafeGetStorageImpl(),
                        OwnedStorage{storage.getWeakStorageImpl(), owner, block, Notes::get().of(block)});
  if (sweeps_.due(storages_.size(), storage.nbytes())) sweep();
}

void AliveMemory::sweep() {
  std::vector<OwnedStorage> gone;
  for (auto entry = storages_.begin(); entry != storages_.end();) {
    if (!entry->second.storage.expired()) {
      ++entry;
      continue;
    }
    if (entry->second.note != 0) gone.push_back(std::move(entry->second));
    entry = storages_.erase(entry);
  }
  sweeps_.done(storages_.size());
  const auto* const asked = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (!dynamic_cast<const MemoryWatch::Listener*>(asked)) return;  // torch.profiler would show it
  for (const OwnedStorage& freed : gone) {
    if (Notes::get().of(freed.block) == freed.note) {
      c10::profiledCPUMemoryReporter().Delete(const_cast<void*>(freed.block));
    }
  }
}

std::vector<AliveMemory::Alive> AliveMemory::alive() const {
  std::map<uint32_t, Alive> by_owner;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [address, entry] : storages_) {
      const auto storage = entry.storage.lock();
      if (!storage) continue;
      Alive& alive = by_owner[entry.owner];
      alive.owner = entry.owner;
      ++alive.count;
      alive.bytes += static_cast<int64_t>(storage->nbytes());
    }
  }
  std::vector<Alive> all;
  for (const auto& [owner, alive] : by_owner) all.push_back(alive);
  std::stable_sort(all.begin(), all.end(), [](const Alive& a, const Alive& b) { return a.bytes > b.bytes; });
  return all;
}

}  // namespace op_tools
