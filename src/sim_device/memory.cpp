#include "sim_device/memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "compat/allocators.h"
#include "sim_device/device.h"
#include "sim_device/sim_device.h"

namespace op_tools::sim_device {
namespace {

constexpr size_t kMemory = size_t{16} << 30;  // the reported size of the device's memory

struct Usage {
  std::atomic<int64_t> allocations = 0;
  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> bytes = 0;
  std::atomic<int64_t> peak = 0;

  void add(int64_t size) {
    ++allocations;
    ++live;
    const int64_t all = bytes += size;
    for (int64_t most = peak; all > most && !peak.compare_exchange_weak(most, all);) {
    }
  }
  void remove(int64_t size) {
    --live;
    bytes -= size;
  }
};

Usage& usage(c10::DeviceIndex device) {
  static std::array<Usage, kDevices> usages;
  return usages.at(static_cast<size_t>(device));
}

// The owner behind a pointer of the device.
struct Block {
  Block(c10::Storage its_host, c10::Device its_device)
      : host(std::move(its_host)), data(host.mutable_data()), size(host.nbytes()), device(its_device) {
    if (!data) return;
    usage(device.index()).add(static_cast<int64_t>(size));
    report(static_cast<int64_t>(size));
  }
  ~Block() {
    if (!data) return;
    usage(device.index()).remove(static_cast<int64_t>(size));
    report(-static_cast<int64_t>(size));
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void report(int64_t change) const {
    const auto all = static_cast<size_t>(usage(device.index()).bytes.load());
    c10::reportMemoryUsageToProfiler(data, change, all, all, device);
  }

  c10::Storage host;
  void* data;
  size_t size;
  c10::Device device;
};

void free_block(void* block) {
  delete static_cast<Block*>(block);  // NOLINT: torch's way to own the target of a DataPtr
}

c10::DataPtr pointer_to(c10::Storage host, c10::Device device) {
  auto block = std::make_unique<Block>(std::move(host), device);
  void* data = block->data;
  return {data, block.release(), &free_block, device};
}

c10::Storage cpu_storage(size_t size) {
  auto* allocator = c10::GetCPUAllocator();
  return {c10::Storage::use_byte_size_t(), size, allocator->allocate(size), allocator, /*resizable=*/true};
}

template <typename Base>
class DeviceMemory final : public Base {
 public:
  c10::DataPtr allocate(size_t size) override {
    return pointer_to(cpu_storage(size), c10::Device(c10::kPrivateUse1, current_device()));
  }
  void copy_data(void* to, const void* from, size_t count) const override { this->default_copy_data(to, from, count); }

  // Of c10::DeviceAllocator (compat/allocators.h). NOLINTBEGIN(modernize-use-override)
  bool initialized() { return true; }
  void emptyCache(compat::PoolId /*pool*/) {}
  void recordStream(const c10::DataPtr& /*pointer*/, c10::Stream /*stream*/) {}  // work holds its tensors
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) {
    const Statistics now = statistics(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto fill = [](auto& stat, int64_t current, int64_t peak, int64_t ever) {
      stat[0].current = current;
      stat[0].peak = peak;
      stat[0].allocated = ever;
      stat[0].freed = ever - current;
    };
    fill(stats.allocation, now.live_allocations, now.live_allocations, now.allocations);
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      fill(*bytes, now.allocated_bytes, now.peak_bytes, now.allocated_bytes);
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) {}
  void resetPeakStats(c10::DeviceIndex device) { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    return {kMemory - static_cast<size_t>(statistics(device).allocated_bytes), kMemory};
  }
  // NOLINTEND(modernize-use-override)
};

// Host memory that the device reads and writes while the host goes on: ordinary memory that is known by its address.
template <typename Base>
class PinnedMemory final : public Base {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* data = c10::alloc_cpu(size);
    const std::lock_guard lock(blocks().mutex);
    blocks().sizes[static_cast<const char*>(data)] = size;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { this->default_copy_data(to, from, count); }

  // Of at::HostAllocator (compat/allocators.h). NOLINTBEGIN(modernize-use-override)
  bool record_event(void* /*pointer*/, void* /*context*/, c10::Stream /*stream*/) { return true; }
  void empty_cache() {}
  at::HostStats get_stats() { return {}; }
  void reset_accumulated_stats() {}
  void reset_peak_stats() {}
  // NOLINTEND(modernize-use-override)

  static bool owns(const void* pointer) {
    const auto* address = static_cast<const char*>(pointer);
    const std::lock_guard lock(blocks().mutex);
    const auto after = blocks().sizes.upper_bound(address);
    return after != blocks().sizes.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  struct Blocks {
    std::mutex mutex;
    std::map<const char*, size_t> sizes;
  };
  // Never destroyed: tensors may outlive the statics of this library.
  static Blocks& blocks() {
    static auto* blocks = new Blocks;  // NOLINT
    return *blocks;
  }
  static void release(void* data) {
    if (!data) return;
    {
      const std::lock_guard lock(blocks().mutex);
      blocks().sizes.erase(static_cast<const char*>(data));
    }
    c10::free_cpu(data);
  }
};

using Device = DeviceMemory<compat::DeviceAllocator>;
using Pinned = PinnedMemory<compat::HostAllocator>;

Device& device_memory() {
  static auto* memory = new Device;  // NOLINT: torch keeps the pointer
  return *memory;
}

Pinned& pinned_memory() {
  static auto* memory = new Pinned;  // NOLINT
  return *memory;
}

}  // namespace

void register_memory() {
  c10::SetAllocator(c10::kPrivateUse1, &device_memory());
  compat::set_host_allocator(c10::kPrivateUse1, &pinned_memory());
}

c10::Allocator* device_allocator() {
  return &device_memory();
}

c10::Allocator* pinned_allocator() {
  return &pinned_memory();
}

bool is_pinned(const void* pointer) {
  return Pinned::owns(pointer);
}

c10::Storage host_storage_of(const c10::Storage& storage) {
  const c10::DataPtr& pointer = storage.data_ptr();
  if (pointer.get_deleter() == &free_block) return static_cast<Block*>(pointer.get_context())->host;
  auto keep = std::make_unique<c10::Storage>(storage);
  c10::DataPtr data(
      pointer.get(), keep.release(), [](void* kept) { delete static_cast<c10::Storage*>(kept); },  // NOLINT
      c10::Device(c10::kCPU));
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, /*resizable=*/false};
}

c10::Storage adopt(c10::Storage host, c10::Device device) {
  const size_t size = host.nbytes();
  return {c10::Storage::use_byte_size_t(), size, pointer_to(std::move(host), device), &device_memory(),
          /*resizable=*/true};
}

bool follow_host_storage(const c10::Storage& storage, const c10::Storage& host) {
  auto* impl = storage.unsafeGetStorageImpl();
  if (impl->data() == host.data() && impl->nbytes() == host.nbytes()) return false;
  impl->set_data_ptr_noswap(pointer_to(host, storage.device()));
  impl->set_nbytes(host.nbytes());
  return true;
}

Statistics statistics(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "sim has devices 0 to ", kDevices - 1, ", not ", device);
  const Usage& memory = usage(static_cast<c10::DeviceIndex>(device));
  Statistics all;
  count_calls(all);
  all.allocations = memory.allocations;
  all.live_allocations = memory.live;
  all.allocated_bytes = memory.bytes;
  all.peak_bytes = memory.peak;
  return all;
}

void reset_peak(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "sim has devices 0 to ", kDevices - 1, ", not ", device);
  Usage& memory = usage(static_cast<c10::DeviceIndex>(device));
  memory.peak = memory.bytes.load();
}

}  // namespace op_tools::sim_device
