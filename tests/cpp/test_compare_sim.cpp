// The assumptions of OpAutoCompare where tensors are on a device.
#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>

#include "calls/snapshot.h"
#include "catch.h"
#include "on_device.h"

using namespace op_tools;  // NOLINT: a test

TEST_CASE("A copy from a device can be shared until somebody writes", "[compare]") {
  const at::Tensor ones = test::on_device(at::ones({64, 1024}));
  for (const at::Tensor& tensor : {ones, ones.slice(0, 8), ones.t()}) {
    const Snapshot snapshot = take_snapshot(make_tuple({tensor}), "");
    const at::Tensor copy = flatten_tensors(snapshot.value)[0];
    REQUIRE(copy.is_cpu());
    CHECK(copy.equal(at::ones_like(copy)));
    c10::StorageImpl& storage = *copy.storage().unsafeGetStorageImpl();
    if (!storage.allocator()) storage.set_allocator(c10::GetCPUAllocator());
    const void* const memory = copy.const_data_ptr();
    const c10::Storage shared(c10::impl::cow::lazy_clone_storage(storage));
    REQUIRE(shared);
    CHECK(copy.const_data_ptr() == memory);
    CHECK(copy.mutable_data_ptr() != memory);  // now it is written
  }
}
