// The device's memory. Every storage of the device owns a host storage, a CPU storage over the same bytes: kernels work
// on tensors of the host storages, so views, in-place results and out= arguments keep their aliasing without a copy.
// (The same storage under a tensor with CPU keys does not do: torch's kernels ask the storage for its device.)
// Thread-safe as torch's storages are.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace op_tools::sim_device {

void register_memory();  // the device's allocator, and the allocator of pinned host memory
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);

// The CPU storage over the same bytes. Memory that is not from our allocator (from_blob) gets such a storage for the
// moment.
c10::Storage host_storage_of(const c10::Storage& storage);
// A new storage of the device over a CPU storage that a kernel made.
c10::Storage adopt(c10::Storage host, c10::Device device);
// After a kernel resized a host storage: gives the device storage the new bytes. False when they are the same.
bool follow_host_storage(const c10::Storage& storage, const c10::Storage& host);

}  // namespace op_tools::sim_device
