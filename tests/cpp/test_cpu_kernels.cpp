#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "catch.h"
#include "tensor/cpu_kernels.h"

namespace op_tools {
namespace {

TEST_CASE("results that the stack alone owned are there after the call") {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::aminmax", "out");
  const auto run = GENERATE(&CpuKernel::call, &CpuKernel::redispatch);
  torch::jit::Stack stack{at::arange(4, at::kDouble), std::nullopt, false, at::empty({0}, at::kDouble),
                          at::empty({0}, at::kDouble)};
  const CpuKernel kernel(op);
  (kernel.*run)(op, &stack);
  REQUIRE(stack.size() == 2);
  CHECK(stack[0].toTensor().use_count() == 1);
  CHECK(stack[0].toTensor().item<double>() == 0);
  CHECK(stack[1].toTensor().use_count() == 1);
  CHECK(stack[1].toTensor().item<double>() == 3);
}

}  // namespace
}  // namespace op_tools
