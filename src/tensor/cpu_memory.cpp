#include "tensor/cpu_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "tensor/dispatch_keys.h"

namespace op_tools {
namespace {

constexpr size_t kGuardBytes = 64;  // before and behind a block; keeps torch's alignment
constexpr unsigned char kPattern = 0xA5;

// Blocks that are looked at after each operator besides its own: 5 us.
constexpr size_t kInTurn = 512;

struct Block {
  c10::DeleterFnPtr release = nullptr;
  size_t bytes = 0;
  bool guarded = false;
  size_t place = 0;     // in Memory::guarded
  uint64_t looked = 0;  // the operators that had ended when it was known to be whole
};

using Listeners = std::vector<std::shared_ptr<CpuMemoryListener>>;

// Of the process; never destroyed, because tensors outlive statics.
struct Memory {
  std::mutex mutex;
  ska::flat_hash_map<const void*, Block> blocks;  // allocated while a listener was there
  std::vector<const void*> guarded;
  size_t next_in_turn = 0;  // of `guarded`
  uint64_t operators = 0;   // that ended
  std::shared_ptr<const Listeners> listeners = std::make_shared<Listeners>();
  std::atomic<size_t> guards{0};  // listeners that want them
  std::atomic<bool> listens{false};
  c10::Allocator* next = nullptr;
};

Memory& memory() {
  static auto* memory = new Memory;  // NOLINT: see above
  return *memory;
}

unsigned char* base_of(void* address) {
  return static_cast<unsigned char*>(address) - kGuardBytes;
}

void draw_guard(unsigned char* base, size_t bytes) {
  std::memset(base, kPattern, kGuardBytes);
  std::memset(base + kGuardBytes + bytes, kPattern, kGuardBytes);
}

bool is_whole(const unsigned char* guard) {
  static const auto pattern = [] {
    std::array<unsigned char, kGuardBytes> bytes;
    bytes.fill(kPattern);
    return bytes;
  }();
  return std::memcmp(guard, pattern.data(), kGuardBytes) == 0;
}

// Adds to `overwrites` the bytes that were written outside of the block, and repairs them. `now`: the operators that
// ended, with the present one.
void look_at_guard(const void* address, Block& block, uint64_t now, std::vector<Overwrite>* overwrites) {
  unsigned char* const base = base_of(const_cast<void*>(address));  // NOLINT: our own bytes around the block
  unsigned char* const behind = base + kGuardBytes + block.bytes;
  const auto operators = static_cast<size_t>(now - std::min(block.looked, now - 1));
  block.looked = now;
  if (is_whole(base) && is_whole(behind)) return;
  Overwrite overwrite{address, block.bytes, 0, 0, operators};
  const auto count = [&](const unsigned char* guard, int64_t offset) {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (guard[i] == kPattern) continue;
      if (overwrite.bytes++ == 0) overwrite.offset = offset + static_cast<int64_t>(i);
    }
  };
  count(base, -static_cast<int64_t>(kGuardBytes));
  count(behind, static_cast<int64_t>(block.bytes));
  draw_guard(base, block.bytes);
  overwrites->push_back(overwrite);
}

thread_local bool tl_in_kernel = false;  // of the program

// Inside of a hook: nothing but our guard excludes all of these keys.
bool is_ours() {
  return !tl_in_kernel && c10::impl::tls_local_dispatch_key_set().excluded_.has_all(kAboveBackendKeys);
}

void release_block(void* address);

class WatchedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Memory& state = memory();
    if (!state.listens.load(std::memory_order_acquire) || bytes == 0 || is_ours()) return state.next->allocate(bytes);
    const bool guarded = state.guards.load(std::memory_order_acquire) > 0;
    c10::DataPtr memory = state.next->allocate(guarded ? bytes + 2 * kGuardBytes : bytes);
    // An allocator whose pointers are more than an address: its blocks are not followed.
    if (memory.get() == nullptr || memory.get() != memory.get_context()) return memory;
    const c10::DeleterFnPtr release = memory.get_deleter();
    const c10::Device device = memory.device();
    auto* address = static_cast<unsigned char*>(memory.release_context());
    if (guarded) {
      draw_guard(address, bytes);
      address += kGuardBytes;
    }
    std::shared_ptr<const Listeners> listeners;
    {
      const std::lock_guard lock(state.mutex);
      state.blocks[address] = {release, bytes, guarded, state.guarded.size(), state.operators};
      if (guarded) state.guarded.push_back(address);
      listeners = state.listeners;
    }
    for (const auto& listener : *listeners) listener->allocated(address, bytes);
    return {address, address, &release_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

void release_block(void* address) {
  if (address == nullptr) return;
  Memory& state = memory();
  Block block;
  std::shared_ptr<const Listeners> listeners;
  std::vector<Overwrite> damage;
  {
    const std::lock_guard lock(state.mutex);
    const auto entry = state.blocks.find(address);
    if (entry != state.blocks.end()) {
      block = entry->second;
      if (block.guarded) {
        look_at_guard(address, block, state.operators + 1, &damage);
        const void* const last = state.guarded.back();  // it takes the place
        state.guarded[block.place] = last;
        state.blocks[last].place = block.place;
        state.guarded.pop_back();
      }
      state.blocks.erase(address);
      listeners = state.listeners;
    }
  }
  if (!block.release) return state.next->raw_deallocate(address);  // allocated without a listener
  for (const auto& listener : *listeners) {
    for (const Overwrite& overwrite : damage) listener->overwritten(overwrite);
    listener->freed(address);
  }
  block.release(block.guarded ? base_of(address) : address);
}

// A child has the blocks, whose memory it may free, and none of the listeners, whose locks it cannot trust.
void forget_listeners() {
  Memory& state = memory();
  state.listens.store(false);
  // Not destroyed: their contents belong to the parent's threads.
  static_cast<void>(new std::shared_ptr<const Listeners>(std::move(state.listeners)));  // NOLINT
  state.listeners = std::make_shared<Listeners>();
  state.guards = 0;
  state.mutex.unlock();
}

void watch_forks() {
  static const int watched =
      pthread_atfork([] { memory().mutex.lock(); }, [] { memory().mutex.unlock(); }, &forget_listeners);
  static_cast<void>(watched);
}

WatchedAllocator& watched_allocator() {
  static auto* allocator = new WatchedAllocator;  // NOLINT: storages hold its address
  return *allocator;
}

// With the mutex. An allocator that was put before ours later may hand on to ours: ours is never put before that
// allocator.
void put_in_place() {
  Memory& state = memory();
  c10::Allocator* const current = c10::GetCPUAllocator();
  if (state.next == nullptr) {
    watch_forks();
    state.next = current;
  }
  if (current == state.next) c10::SetCPUAllocator(&watched_allocator());
}

}  // namespace

CpuMemoryWatch::CpuMemoryWatch(std::shared_ptr<CpuMemoryListener> listener, bool guard)
    : listener_(std::move(listener)), guard_(guard) {
  Memory& state = memory();
  const std::lock_guard lock(state.mutex);
  put_in_place();
  auto more = std::make_shared<Listeners>(*state.listeners);
  more->push_back(listener_);
  state.listeners = std::move(more);
  state.guards += guard_ ? 1 : 0;
  state.listens.store(true, std::memory_order_release);
}

CpuMemoryWatch::~CpuMemoryWatch() {
  Memory& state = memory();
  const std::lock_guard lock(state.mutex);
  auto fewer = std::make_shared<Listeners>(*state.listeners);
  const auto place = std::find(fewer->begin(), fewer->end(), listener_);
  if (place == fewer->end()) return;  // a forked child
  fewer->erase(place);
  state.listeners = std::move(fewer);
  state.guards -= guard_ ? 1 : 0;
  if (!state.listeners->empty()) return;
  state.listens.store(false, std::memory_order_release);
  if (c10::GetCPUAllocator() == &watched_allocator()) c10::SetCPUAllocator(state.next);
}

bool CpuMemoryWatch::sees() const {
  return c10::GetCPUAllocator() == &watched_allocator();
}

KernelMemory::KernelMemory() : outer_(tl_in_kernel) {
  tl_in_kernel = !is_ours();
}

KernelMemory::~KernelMemory() {
  tl_in_kernel = outer_;
}

bool cpu_memory_is_guarded() {
  return c10::GetCPUAllocator() == &watched_allocator() && memory().guards.load(std::memory_order_acquire) > 0;
}

std::vector<Overwrite> overwrites(const std::vector<const void*>& of_operator) {
  Memory& state = memory();
  const std::lock_guard lock(state.mutex);
  const uint64_t now = ++state.operators;
  std::vector<Overwrite> overwrites;
  for (const void* const address : of_operator) {
    const auto entry = state.blocks.find(address);
    if (entry != state.blocks.end() && entry->second.guarded) look_at_guard(address, entry->second, now, &overwrites);
  }
  for (size_t i = 0; i < std::min(kInTurn, state.guarded.size()); ++i) {
    if (state.next_in_turn >= state.guarded.size()) state.next_in_turn = 0;
    const void* const address = state.guarded[state.next_in_turn++];
    look_at_guard(address, state.blocks[address], now, &overwrites);
  }
  return overwrites;
}

std::vector<Overwrite> overwrites() {
  Memory& state = memory();
  const std::lock_guard lock(state.mutex);
  std::vector<Overwrite> overwrites;
  for (const void* const address : state.guarded) {
    look_at_guard(address, state.blocks[address], std::max<uint64_t>(state.operators, 1), &overwrites);
  }
  return overwrites;
}

}  // namespace op_tools
