// Memory of private copies: its contents, and where it goes when they are gone.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <chrono>
#include <thread>

#include "catch.h"
#include "tensor/copy_memory.h"

using namespace op_tools;  // NOLINT: a test

namespace {

at::Tensor bytes(int64_t count) {
  return at::arange(count).to(at::kByte);
}

// Only watches: the program that left the scope does nothing more either.
void wait_until_it_is_gone() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (idle_copy_memory() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

TEST_CASE("A copy has the tensor's bytes, whatever its size and place", "[copy_memory]") {
  for (const int64_t count : {1, 63, 1025, 65'537, 524'287, 524'288, 524'351, 3'000'001}) {
    const at::Tensor whole = bytes(count + 64);
    for (const int64_t first : {0, 1, 64}) {
      const at::Tensor part = whole.narrow(0, first, count);
      const at::Tensor copy = private_copy(part);
      CHECK(copy.equal(part));
      CHECK(copy.const_data_ptr() != part.const_data_ptr());
    }
  }
}

TEST_CASE("The next copy of a size takes over the memory of the last", "[copy_memory]") {
  for (const int64_t megabytes : {1, 2, 3, 7}) {  // huge pages hold two: the rest of the last must not matter
    const at::Tensor tensor = bytes((megabytes << 20) + 5);
    const void* first = private_copy(tensor).const_data_ptr();
    const size_t idle = idle_copy_memory();
    CHECK(idle >= tensor.nbytes());
    CHECK(private_copy(tensor).const_data_ptr() == first);
    CHECK(idle_copy_memory() == idle);
  }
}

TEST_CASE("Memory of copies waits for the next scope, and goes back when none comes", "[copy_memory]") {
  const at::Tensor tensor = bytes(8 << 20);
  const void* first = private_copy(tensor).const_data_ptr();
  release_copy_memory();  // a scope is left
  release_copy_memory();  // another
  CHECK(idle_copy_memory() >= tensor.nbytes());
  CHECK(private_copy(tensor).const_data_ptr() == first);
  wait_until_it_is_gone();
  CHECK(idle_copy_memory() == 0);
  // And again.
  CHECK(private_copy(tensor).equal(tensor));
  CHECK(idle_copy_memory() >= tensor.nbytes());
  release_copy_memory();
  wait_until_it_is_gone();
  CHECK(idle_copy_memory() == 0);
}
