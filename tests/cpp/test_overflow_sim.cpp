// OpOverflowCheck on a device: values are looked at there, and judged for a window of calls together.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "calls/call_store.h"
#include "catch.h"
#include "observe/overflow_check.h"
#include "on_device.h"
#include "quiet_log.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::on_device;
using op_tools::test::QuietLog;
using op_tools::test::TemporaryFolder;

namespace {

OverflowOptions window_of(const TemporaryFolder& folder, int64_t every) {
  OverflowOptions options;
  options.output_dir = folder.path();
  options.every = every;
  return options;
}

double saved_element(const OverflowResult::Finding& finding, CallFile file) {
  const FoundCalls stored = find_calls(finding.saved);
  REQUIRE(stored.calls.size() == 1);
  const Value call = stored.calls.front()->read(file);
  const auto* tensor = (*sequence_items(*find_key(call, "args")))[0].get_if<at::Tensor>();
  REQUIRE(tensor);
  return tensor->select(0, 0).item<double>();
}

}  // namespace

TEST_CASE("A window is judged when it is full, at a step, and at the end, in the order of the calls", "[overflow]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const at::Tensor x = on_device(at::zeros({2}));
  OpOverflowCheck scope(window_of(folder, 3));
  const at::Tensor bad = at::log(x);
  at::mul(bad, 2.0);
  CHECK(scope.result().findings.empty());  // two of three
  at::exp(x);
  REQUIRE(scope.result().findings.size() == 2);
  CHECK(scope.result().findings[0].call.name == "aten::log");
  CHECK(scope.result().findings[0].producer);
  CHECK_FALSE(scope.result().findings[1].producer);
  at::sqrt(x - 1);
  CHECK(scope.result().producers == 1);
  scope.step();
  at::exp(x);  // the first call of a step judges the previous step
  CHECK(scope.result().producers == 2);
  at::log(x);
  scope.hook().flush();
  CHECK(scope.result().producers == 3);
}

TEST_CASE("A tensor written before the window is judged is saved as it was", "[overflow]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const at::Tensor x = on_device(at::full({2}, -4.0));
  OpOverflowCheck scope(window_of(folder, 1000));
  const at::Tensor root = at::sqrt(x);
  x.fill_(7);         // the input ...
  root.zero_();       // ... and the output
  x.sub_(8).sqrt_();  // in place itself
  scope.hook().flush();
  const OverflowResult result = scope.result();
  REQUIRE(result.producers == 2);
  CHECK(result.findings[0].call.name == "aten::sqrt");
  CHECK(result.findings[0].nan == 2);
  CHECK(saved_element(result.findings[0], CallFile::kInput) == -4);
  CHECK(std::isnan(saved_element(result.findings[0], CallFile::kOutput)));
  CHECK(result.findings[1].call.name == "aten::sqrt_");
  CHECK(saved_element(result.findings[1], CallFile::kInput) == -1);
  CHECK(std::isnan(saved_element(result.findings[1], CallFile::kOutput)));
}
