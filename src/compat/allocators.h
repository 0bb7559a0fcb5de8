#pragma once

// The allocators that a backend of its own registers with torch (src/sim_device/memory.cpp).
// Gap: c10::DeviceAllocator since torch 2.9, at::HostAllocator and at::setHostAllocator() since 2.8. Before, both are
// plain c10::Allocators: torch.accelerator's functions of memory and of pinned memory's cache do not exist there.
//
// Both names are declared here and stay without a definition where torch has none. A class derived from the alias is a
// template of its base, and its functions beyond c10::Allocator's do not say `override`: without the base's virtual
// function they are ordinary members, which nothing calls.

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <type_traits>
#include <utility>

#include "compat/defined.h"

namespace c10 {
struct DeviceAllocator;
}
namespace at {
struct HostAllocator;
}

namespace op_tools::compat {

template <typename Type>
using OrAllocator =
    typename std::conditional_t<Defined<Type>, std::type_identity<Type>, std::type_identity<c10::Allocator>>::type;

using DeviceAllocator = OrAllocator<c10::DeviceAllocator>;
using HostAllocator = OrAllocator<at::HostAllocator>;
using PoolId = std::pair<unsigned long long, unsigned long long>;  // NOLINT: c10::MempoolId_t, since torch 2.9

template <typename Allocator>
void set_host_allocator(c10::DeviceType device, Allocator* allocator) {
  if constexpr (requires { setHostAllocator(device, allocator); }) setHostAllocator(device, allocator);
}

}  // namespace op_tools::compat
