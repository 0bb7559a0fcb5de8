#include "tensor/copy_memory.h"

#include <ATen/ops/clone_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fork_guard.h"
#include "tensor/plain_tensor.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace op_tools {
namespace {

constexpr size_t kAlign = 64;

constexpr size_t rounded_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Blocks that are free are found by size. No thread waits for the lock: a thread that does not get it at once allocates
// or frees as if there were no blocks, and so does a forked child whose parent held it.
class LargeCopies {
 public:
  static constexpr size_t kLeast = size_t{64} << 10;

  static LargeCopies& get() {
    static LargeCopies* copies = new LargeCopies;  // leaked: copies may be freed while the process exits
    return *copies;
  }

  c10::DataPtr allocate(size_t size) {
    const size_t capacity = rounded_up(size, size >= kHugePage ? kHugePage : kPage);
    // Of blocks that are much too large nothing is taken: the queue's limit counts the bytes of the copies.
    if (Block* const block = take(size, std::max(capacity, size + size / 8))) return owned(block);
    void* const memory = map(capacity);
    if (!memory) return c10::GetCPUAllocator()->allocate(size);  // its error says how much was wanted
    return owned(new Block{memory, capacity});
  }

  // A thread frees waiting blocks when no copy was asked for during kAge. One thread at a time, and none while nothing
  // waits.
  void release() noexcept {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || idle_.empty() || (ager_of_ && !ager_of_->in_child())) return;
    try {
      std::thread([this] { age(); }).detach();  // may sleep when the process exits: it has nothing to finish
      ager_of_.emplace();
    } catch (const std::system_error&) {
      free_idle();  // no thread to be had
    }
  }

  size_t idle_bytes() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return idle_bytes_;
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kMostIdle = size_t{512} << 20;
  static constexpr std::chrono::seconds kAge{1};

  struct Block {
    void* memory;
    size_t capacity;
  };

  // From the system and not from malloc: the program's own allocations stay as they would be without us.
  static void* map(size_t capacity) {
    const size_t slack = capacity >= kHugePage ? kHugePage : 0;  // to begin at a huge page
    void* const all = mmap(nullptr, capacity + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return nullptr;
    if (slack == 0) return all;
    auto* const first = static_cast<char*>(all);
    const auto address = reinterpret_cast<uintptr_t>(first);
    const size_t before = rounded_up(address, kHugePage) - address;
    if (before > 0) munmap(first, before);
    if (before < slack) munmap(first + before + capacity, slack - before);
    madvise(first + before, capacity, MADV_HUGEPAGE);  // a hint: a system without huge pages ignores it
    return first + before;
  }

  static c10::DataPtr owned(Block* block) { return {block->memory, block, &leave, at::kCPU}; }
  static void destroy(Block* block) {
    munmap(block->memory, block->capacity);
    delete block;
  }
  static void leave(void* block) noexcept { get().keep(static_cast<Block*>(block)); }

  void free_idle() noexcept {
    for (const auto& [capacity, block] : idle_) destroy(block);
    idle_.clear();
    idle_bytes_ = 0;
  }

  void age() noexcept {
    pthread_setname_np(pthread_self(), "op_copy_memory");
    for (uint64_t known = 0;;) {
      std::this_thread::sleep_for(kAge);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(known, asked_) != asked_) continue;
      free_idle();
      ager_of_.reset();
      return;
    }
  }

  Block* take(size_t least, size_t most) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    ++asked_;
    const auto entry = idle_.lower_bound(least);
    if (entry == idle_.end() || entry->first > most) return nullptr;
    Block* const block = entry->second;
    idle_bytes_ -= block->capacity;
    idle_.erase(entry);
    return block;
  }

  void keep(Block* block) noexcept {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || block->capacity > kMostIdle) return destroy(block);
    try {
      // Before those of its size: the block used last is in the caches.
      idle_.emplace_hint(idle_.lower_bound(block->capacity), block->capacity, block);
    } catch (...) {
      return destroy(block);
    }
    idle_bytes_ += block->capacity;
    while (idle_bytes_ > kMostIdle) {
      // The smallest go first: they are the cheapest to make again.
      const auto smallest = idle_.begin();
      idle_bytes_ -= smallest->first;
      destroy(smallest->second);
      idle_.erase(smallest);
    }
  }

  std::mutex mutex_;
  std::multimap<size_t, Block*> idle_;
  size_t idle_bytes_ = 0;
  uint64_t asked_ = 1;                // copies, by now
  std::optional<ForkGuard> ager_of_;  // whose thread will free waiting blocks: a forked child has not got it
};

// Many copies share a block, which is freed with the last of them. An allocation each is most of the cost of a capture
// of small calls, the more so as another thread frees them.
template <size_t kMostBytes, size_t kBlockBytes>
class SharedBlocks {
 public:
  static constexpr size_t kMost = kMostBytes;  // of a single copy

  c10::DataPtr allocate(size_t size) {
    const size_t rounded = rounded_up(size, kAlign);
    if (!block_ || used_ + rounded > kBlockBytes) {
      if (block_) close();
      block_ = nullptr;
      block_ = new Block(kBlockBytes);
      used_ = 0;
      copies_ = 0;
    }
    void* const memory = static_cast<char*>(block_->memory.get()) + used_;
    used_ += rounded;
    ++copies_;
    return {memory, block_, &leave, at::kCPU};
  }
  ~SharedBlocks() {
    if (block_) close();
  }

 private:
  struct Block {
    explicit Block(size_t size)
        : memory(size < LargeCopies::kLeast ? c10::GetCPUAllocator()->allocate(size)
                                            : LargeCopies::get().allocate(size)) {}
    const c10::DataPtr memory;
    // Copies, and until it is closed many more: the thread that fills it counts by itself, as another thread frees the
    // copies and would have to be asked for the number each time.
    std::atomic<int64_t> users{kOpen};
  };
  static constexpr int64_t kOpen = int64_t{1} << 62;

  static void leave(Block* block, int64_t times) {
    if (block->users.fetch_sub(times, std::memory_order_acq_rel) == times) delete block;
  }
  static void leave(void* block) { leave(static_cast<Block*>(block), 1); }
  void close() { leave(block_, kOpen - copies_); }

  Block* block_ = nullptr;
  size_t used_ = 0;
  int64_t copies_ = 0;  // copies in the block
};

// A large copy is read late or never, so it goes straight to memory: its lines are not fetched first, and data
// that the program has in the caches stays there.
constexpr size_t kPastCaches = size_t{512} << 10;

#ifdef __SSE2__
// In four places at once: the processor's prefetch ends with a page. A line is written by a single instruction where
// the processor has such an instruction.
__attribute__((target("avx512f"))) void stream_wide(char* to, const char* from, size_t part) {
  for (size_t line = 0; line < part; line += kAlign) {
    for (size_t place = line; place < 4 * part; place += part) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + place), _mm512_loadu_si512(from + place));
    }
  }
}
void stream(char* to, const char* from, size_t part) {
  for (size_t line = 0; line < part; line += kAlign) {
    for (size_t place = line; place < 4 * part; place += part) {
      for (size_t at = place; at < place + kAlign; at += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
      }
    }
  }
}
void copy_past_caches(char* to, const char* from, size_t bytes) {  // `to` is aligned to kAlign
  const size_t part = bytes / 4 / kAlign * kAlign;
  static const bool wide = __builtin_cpu_supports("avx512f");
  (wide ? stream_wide : stream)(to, from, part);
  _mm_sfence();
  std::memcpy(to + 4 * part, from + 4 * part, bytes - 4 * part);
}
#else
void copy_past_caches(char* to, const char* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

// A block is also the most that a long-lived copy keeps allocated besides itself.
using SmallCopies = SharedBlocks<size_t{1} << 10, size_t{16} << 10>;
using MediumCopies = SharedBlocks<LargeCopies::kLeast - 1, size_t{512} << 10>;

}  // namespace

c10::DataPtr memory_for_copy(size_t size) {
  thread_local SmallCopies small;
  thread_local MediumCopies medium;
  if (size <= SmallCopies::kMost) return small.allocate(size);
  return size <= MediumCopies::kMost ? medium.allocate(size) : LargeCopies::get().allocate(size);
}

void fill_copy(void* memory, const void* from, size_t size) {
  if (size < kPastCaches) {
    std::memcpy(memory, from, size);
  } else {
    copy_past_caches(static_cast<char*>(memory), static_cast<const char*>(from), size);
  }
}

at::Tensor private_copy(const at::Tensor& tensor) {
  std::string type;
  const bool simple = tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
                      why_not_plain(tensor, &type).empty() && !tensor._is_zerotensor() && !tensor.is_conj() &&
                      !tensor.is_neg() && !tensor.is_quantized() && tensor.is_non_overlapping_and_dense();
  if (!simple) return at::_ops::clone::call(tensor, std::nullopt).detach();
  at::Tensor copy = private_empty_like(tensor, tensor.scalar_type());
  if (tensor.numel() > 0) fill_copy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

at::Tensor private_empty_like(const at::Tensor& dense, c10::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(dense.numel()) * c10::elementSize(dtype);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), bytes, memory_for_copy(bytes), c10::GetCPUAllocator(), true),
      c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(dense.sizes(), dense.strides());
  return tensor;
}

void release_copy_memory() noexcept {
  LargeCopies::get().release();
}

size_t idle_copy_memory() noexcept {
  return LargeCopies::get().idle_bytes();
}

}  // namespace op_tools
