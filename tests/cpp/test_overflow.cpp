// OpOverflowCheck from C++, on the CPU; the window of a device is in test_overflow_sim.cpp.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "calls/call_store.h"
#include "catch.h"
#include "observe/nonfinite.h"
#include "observe/overflow_check.h"
#include "quiet_log.h"
#include "special_values.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::TemporaryFolder;

namespace {

// The findings of the check while the program ran.
template <class Program>
OverflowResult checked(const TemporaryFolder& folder, Program&& program, OverflowOptions options = {}) {
  const QuietLog quiet;
  options.output_dir = folder.path();
  OpOverflowCheck scope(options);
  program();
  scope.hook().flush();
  return scope.result();
}

std::vector<std::string> producers(const OverflowResult& result) {
  std::vector<std::string> names;
  for (const auto& finding : result.findings) {
    if (finding.producer) names.push_back(finding.call.name);
  }
  return names;
}

Value saved_input(const OverflowResult::Finding& finding) {
  const FoundCalls stored = find_calls(finding.saved);
  REQUIRE(stored.calls.size() == 1);
  return stored.calls.front()->read(CallFile::kInput);
}

}  // namespace

TEST_CASE("The producer is told from calls that pass its values on", "[overflow]") {
  const TemporaryFolder folder;
  const at::Tensor x = at::ones({2, 3});
  x.select(0, 1).select(0, 2).zero_();
  const OverflowResult result = checked(folder, [&] { at::exp(at::log(x)).mul(2) + at::log(x); });
  CHECK(producers(result) == std::vector<std::string>{"aten::log", "aten::log"});
  CHECK(result.producers == 2);
  CHECK(result.propagators == 1);  // exp(-inf) is 0, so only the sum gets an infinity
  const auto& first = result.findings.front();
  CHECK(first.first == std::vector<int64_t>{1, 2});
  CHECK(first.neg_inf == 1);
  CHECK(first.tensor.shape == at::DimVector{2, 3});
  CHECK_FALSE(result.ok());
}

TEST_CASE("Integers, empty tensors and memory that nobody has written are not looked at", "[overflow]") {
  const TemporaryFolder folder;
  const OverflowResult result = checked(folder, [&] {
    const at::Tensor whole = at::full({3}, std::numeric_limits<int64_t>::max(), at::kLong);
    whole.mul(2).add(1);
    const at::Tensor memory = at::empty({1000});
    memory.fill_(1);
    at::log(at::zeros({0}));
  });
  CHECK(result.ok());
  CHECK(result.findings.empty());
  CHECK_FALSE(result.root.empty());  // a run in which nothing was found stands in a report, too
}

TEST_CASE("Masks are intended, and wrong results made of them are not", "[overflow]") {
  const TemporaryFolder folder;
  const at::Tensor scores = at::zeros({2, 2});
  const at::Tensor some = at::zeros({2, 2}, at::kBool);
  some.select(0, 0).select(0, 0).fill_(true);
  const auto masked = [&](const at::Tensor& mask) { at::softmax(scores.masked_fill(mask, -kInf), -1); };
  CHECK(checked(folder, [&] { masked(some); }).ok());
  CHECK(producers(checked(folder, [&] {
          masked(at::ones({2, 2}, at::kBool));
        })) == std::vector<std::string>{"aten::_softmax"});
  OverflowOptions nothing_allowed;
  nothing_allowed.allow = "";
  CHECK(checked(
            folder, [&] { masked(some); }, nothing_allowed)
            .ok());
}

TEST_CASE("Infinities can be left out", "[overflow]") {
  const TemporaryFolder folder;
  OverflowOptions options;
  options.inf = false;
  const auto program = [] {
    const at::Tensor infinite = at::log(at::zeros({2}));
    infinite - infinite;
  };
  CHECK(producers(checked(folder, program, options)) == std::vector<std::string>{"aten::sub.Tensor"});
}

TEST_CASE("A producer's call is saved with its inputs as they were", "[overflow]") {
  const TemporaryFolder folder;
  const at::Tensor x = at::full({3}, 4.0);
  x.select(0, 0).fill_(-1);
  const OverflowResult result = checked(folder, [&] {
    at::sqrt(x);
    x.sqrt_();  // in place: its old value is gone
  });
  REQUIRE(result.findings.size() == 2);
  for (const auto& finding : result.findings) {
    INFO(finding.call.name << " " << finding.not_saved);
    REQUIRE_FALSE(finding.saved.empty());
    const Value call = saved_input(finding);
    const auto* input = (*sequence_items(*find_key(call, "args")))[0].get_if<at::Tensor>();
    REQUIRE(input);
    CHECK(input->equal(at::full({3}, 4.0).index_fill(0, at::zeros({1}, at::kLong), -1)));
    const Value output = find_calls(finding.saved).calls.front()->read(CallFile::kOutput);
    const auto* result_tensor = (*sequence_items(*find_key(output, "args")))[0].get_if<at::Tensor>();
    REQUIRE(result_tensor);
    CHECK(std::isnan(result_tensor->select(0, 0).item<double>()));
  }
}

TEST_CASE("Few calls of an operator are saved, and the others say why they are not", "[overflow]") {
  const TemporaryFolder folder;
  OverflowOptions options;
  options.max_saved = 1;
  const auto program = [] {
    for (int i = 0; i < 3; ++i) at::log(at::zeros({2}));
    at::sqrt(at::full({2}, -1.0));
  };
  const OverflowResult result = checked(folder, program, options);
  REQUIRE(result.findings.size() == 4);
  CHECK_FALSE(result.findings[0].saved.empty());
  CHECK(result.findings[1].saved.empty());
  CHECK(result.findings[1].not_saved.find("max_saved") != std::string::npos);
  CHECK_FALSE(result.findings[3].saved.empty());
  CHECK(find_calls(result.root).calls.size() == 2);

  options.max_saved = 0;
  const OverflowResult none = checked(folder, program, options);
  CHECK(none.findings.size() == 4);
  CHECK(find_calls(none.root).calls.empty());
  options.max_saved = -1;
  CHECK_THROWS_AS(checked(folder, program, options), Error);
}

TEST_CASE("A single value among many is found wherever it is, in every dtype", "[overflow]") {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e5m2};
  const auto has = [](const at::Tensor& tensor) { return NonFiniteQuery(tensor).answer(); };
  for (const at::ScalarType dtype : dtypes) {
    // Three elements more than whole blocks, and all places where a block, a stream in it or the rest begins or ends.
    constexpr int64_t kBlock = 65536;
    const at::Tensor most = at::full({2 * kBlock + 3}, dtype == at::kFloat8_e5m2 ? 57344.0 : 65504.0);
    const at::Tensor sound = (dtype == at::kBFloat16 ? at::full({2 * kBlock + 3}, 3.38e38) : most).to(dtype);
    CHECK(!has(sound).any());
    CHECK(!has((-sound.to(at::kFloat)).to(dtype)).any());
    for (const int64_t at : {int64_t{0}, kBlock / 4 - 1, kBlock / 4, kBlock / 2, 3 * kBlock / 4, kBlock - 1, kBlock,
                             2 * kBlock - 1, 2 * kBlock, 2 * kBlock + 2}) {
      for (const double value : {kInf, -kInf, kInf - kInf}) {
        at::Tensor tensor = sound.to(at::kFloat).clone();
        tensor[at] = value;
        const Specials specials = has(tensor.to(dtype));
        CHECK(specials.nan == std::isnan(value));
        CHECK(specials.pos_inf == (value > 0));
        CHECK(specials.neg_inf == (value < 0));
      }
    }
    for (int64_t size = 1; size < 9; ++size) {
      at::Tensor tensor = sound.to(at::kFloat).narrow(0, 1, size).clone();
      tensor[size - 1] = kInf;
      CHECK(has(tensor.to(dtype)).pos_inf);
      CHECK(!has(sound.narrow(0, 1, size)).any());
    }
  }
}
