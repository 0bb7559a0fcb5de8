// A device whose tensors have no storage, as lazy and vendor backends have them: the values of its own copy to the CPU
// are judged, stored, and moved for a fallback.
#include <ATen/OpaqueTensorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

#include <memory>
#include <string>

#include "calls/snapshot.h"
#include "catch.h"
#include "compare/compare_hook.h"
#include "fallback/cpu_runner.h"
#include "quiet_log.h"
#include "recording_hook.h"
#include "temporary_folder.h"
#include "tensor/plain_tensor.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::TemporaryFolder;

namespace {

const c10::Device kOpaque(c10::kPrivateUse1, 0);
double mul_factor = 1;  // the error of the device's mul

using Handle = std::shared_ptr<at::Tensor>;

at::Tensor opaque(const at::Tensor& values) {
  return at::detail::make_tensor<at::OpaqueTensorImpl<Handle>>(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                               values.dtype(), kOpaque,
                                                               std::make_shared<at::Tensor>(values), values.sizes());
}

const at::Tensor& values_of(const at::Tensor& tensor) {
  return *static_cast<at::OpaqueTensorImpl<Handle>*>(tensor.unsafeGetTensorImpl())->opaque_handle();
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                   std::optional<at::Device> device, std::optional<bool>, bool, std::optional<at::MemoryFormat>) {
  const at::Tensor values = self.is_privateuseone() ? values_of(self) : self;
  const at::Tensor copy = values.to(dtype.value_or(values.scalar_type()), false, /*copy=*/true);
  return device.value_or(self.device()).is_cpu() ? copy : opaque(copy);
}

at::Tensor mul(const at::Tensor& tensor, const at::Tensor& other) {
  return opaque(values_of(tensor) * values_of(other) * mul_factor);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_copy", to_copy);
  m.impl("mul.Tensor", mul);
}

struct Judged {
  int64_t passed, failed;
  std::string blamed;
};

Judged judged(double factor) {
  const QuietLog quiet;
  const TemporaryFolder folder;
  mul_factor = factor;
  const at::Tensor x = opaque(at::arange(1, 9).to(at::kFloat));
  CompareOptions options;
  options.output_dir = folder.path();
  OpAutoCompare scope(options);
  at::mul(x, x);
  const CompareResult result = scope.result();
  std::string blamed;
  for (const auto& op : result.ops) blamed += op.failed > 0 ? op.op : "";
  return {static_cast<int64_t>(result.passed), static_cast<int64_t>(result.failed), blamed};
}

}  // namespace

TEST_CASE("Tensors without storage are judged by their device's copies on the CPU", "[compare]") {
  const Judged right = judged(1);
  CHECK(right.passed == 1);
  CHECK(right.failed == 0);
  const Judged wrong = judged(1.01);
  CHECK(wrong.failed == 1);
  CHECK(wrong.blamed == "aten::mul.Tensor");
}

TEST_CASE("Tensors without storage are copied for files, and moved for a fallback", "[snapshot][fallback]") {
  const at::Tensor values = at::arange(6).to(at::kFloat).view({2, 3});
  const at::Tensor x = opaque(values);
  std::string type;
  CHECK_FALSE(why_not_plain(x, &type).empty());
  CHECK(why_not_copied(x, &type).empty());
  const Snapshot snapshot = take_snapshot(x, "x");
  CHECK(snapshot.unsupported.empty());
  REQUIRE(snapshot.value.is<at::Tensor>());
  CHECK(at::equal(*snapshot.value.get_if<at::Tensor>(), values));
  CHECK(snapshot.tensors.at(0).device == kOpaque);
  const MovedCall moved(make_tuple({x}), make_dict({}), {.device = c10::kCPU});
  CHECK(at::equal(moved.tensors().at(0), values));
}
