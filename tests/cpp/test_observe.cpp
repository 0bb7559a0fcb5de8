// OpObserve and apply_feature from C++. Statistics of all dtypes are compared with torch's in
// tests/python/test_observe.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"
#include "catch.h"
#include "hooks/conditional_hook.h"
#include "observe/observe_hook.h"
#include "quiet_log.h"
#include "recording_hook.h"
#include "scoped_variable.h"
#include "temporary_folder.h"
#include "tensor/statistics.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::ScopedVariable;
using op_tools::test::TemporaryFolder;

namespace {

Statistics statistics_of(const at::Tensor& tensor) {
  const StatisticsQuery question(tensor);
  REQUIRE(question.answered());
  return question.answer();
}

std::vector<nlohmann::json> rows_of(const ObserveResult& result) {
  std::ifstream file(result.root + "/calls.jsonl");
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

ObserveOptions observe_into(const TemporaryFolder& folder, int64_t detail) {
  ObserveOptions options;
  options.output_dir = folder.path();
  options.detail = detail;
  return options;
}

}  // namespace

TEST_CASE("Statistics are those of all elements, however many", "[observe]") {
  const int64_t numel = GENERATE(1, 3, 511, 512, 513, 65536, 200001);
  const Statistics statistics = statistics_of(at::arange(numel, at::kFloat).sub(2));
  CHECK(statistics.known);
  CHECK(statistics.numel == numel);
  CHECK(*statistics.least().get_if<double>() == -2);
  CHECK(*statistics.most().get_if<double>() == static_cast<double>(numel - 3));
  CHECK(statistics.mean == Approx(static_cast<double>(numel - 5) / 2).epsilon(1e-12));
  CHECK(statistics.zero == (numel > 2));
  CHECK(statistics.nan == 0);
  CHECK(statistics.inf == 0);
}

TEST_CASE("A hash is of the elements in their order, not of their memory", "[observe]") {
  const at::Tensor x = at::rand({7, 5});
  const uint64_t hash = statistics_of(x).hash;
  CHECK(statistics_of(x.t().contiguous().t()).hash == hash);
  CHECK(statistics_of(x.clone()).hash == hash);
  CHECK(statistics_of(x.t()).hash != hash);
  at::Tensor other = x.clone();
  other.select(0, 6).select(0, 4).add_(1e-3);
  CHECK(statistics_of(other).hash != hash);
  CHECK(statistics_of(at::zeros({3})).hash != statistics_of(at::zeros({4})).hash);
  CHECK(statistics_of(at::zeros({3})).hash != statistics_of(-at::zeros({3})).hash);  // -0.0 has other bits
}

TEST_CASE("Whole numbers beyond the range of a double stay exact", "[observe]") {
  at::Tensor x = at::zeros({1000}, at::kLong);
  x.select(0, 700).fill_(std::numeric_limits<int64_t>::max());
  x.select(0, 1).fill_(std::numeric_limits<int64_t>::min() + 1);
  const Statistics statistics = statistics_of(x);
  CHECK(*statistics.most().get_if<int64_t>() == std::numeric_limits<int64_t>::max());
  CHECK(*statistics.least().get_if<int64_t>() == std::numeric_limits<int64_t>::min() + 1);
}

TEST_CASE("Each call is a row with its arguments, results and their statistics", "[observe]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  at::Tensor x = at::ones({2, 3});
  OpObserve scope(observe_into(folder, 3));
  x.mul_(2);
  scope.hook().flush();
  const auto rows = rows_of(scope.result());
  REQUIRE(rows.size() == 1);
  const auto& row = rows.front();
  CHECK(row["op"] == "aten::mul_.Scalar");
  CHECK(row["phase"] == "forward");
  CHECK(row["args"][0]["shape"] == std::vector<int64_t>{2, 3});
  CHECK(row["args"][0]["stride"] == std::vector<int64_t>{3, 1});
  CHECK(row["args"][0]["dtype"] == "torch.float32");
  CHECK(row["args"][0]["max"] == 1);  // before the call
  CHECK(row["result"]["max"] == 2);
  CHECK(row["result"]["norm"].get<double>() == Approx(std::sqrt(24.0)));
}

TEST_CASE("Detail says how much is written, and DIPU_DUMP_OP_ARGS where nothing else does", "[observe]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const ScopedVariable variable("DIPU_DUMP_OP_ARGS", "1");
  const auto row_of = [&](const ObserveOptions& options) {
    OpObserve scope(options);
    at::relu(at::ones({2}));
    scope.hook().flush();
    const ObserveResult result = scope.result();
    CHECK(result.rows.size() >= 2);  // the table counts at every level
    const auto rows = result.root.empty() ? std::vector<nlohmann::json>() : rows_of(result);
    return rows.empty() ? nlohmann::json() : rows.back();
  };
  CHECK(row_of(observe_into(folder, 0)).is_null());
  CHECK_FALSE(row_of(observe_into(folder, 1)).contains("args"));
  CHECK(row_of(observe_into(folder, 2))["args"][0].contains("shape"));
  CHECK_FALSE(row_of(observe_into(folder, 2))["args"][0].contains("hash"));
  CHECK(row_of(observe_into(folder, 3))["args"][0].contains("hash"));
  ObserveOptions unsaid;
  unsaid.output_dir = folder.path();
  CHECK_FALSE(row_of(unsaid).contains("args"));
  ScopedVariable wrong("DIPU_DUMP_OP_ARGS", "4");
  CHECK_THROWS_AS(row_of(unsaid), Error);
}

TEST_CASE("Calls are counted by shapes, and sizes that vary are named", "[observe]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  OpObserve scope(observe_into(folder, 0));
  const at::Tensor weight = at::ones({4, 6});
  for (const int64_t rows : {3, 5, 3}) at::mm(at::ones({rows, 4}), weight);
  const ObserveResult result = scope.result();
  std::vector<uint64_t> calls;
  for (const CallShapes& row : result.rows) {
    if (row.op == "aten::mm") calls.push_back(row.calls);
  }
  CHECK(calls == std::vector<uint64_t>{2, 1});
  std::vector<DynamicDim> varying;
  for (const DynamicDim& dim : result.varying) {
    if (dim.op == "aten::mm") varying.push_back(dim);
  }
  REQUIRE(varying.size() == 2);  // rows of the input and of the result; the weight stays
  CHECK_FALSE(varying[0].is_output);
  CHECK(varying[0].tensor == 0);
  CHECK(varying[0].dimension == 0);
  CHECK(varying[0].sizes == std::vector<int64_t>{3, 5});
  CHECK(varying[0].calls == 3);
  CHECK(varying[1].is_output);
}

TEST_CASE("Rows end at max_calls, the table goes on", "[observe]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  ObserveOptions options = observe_into(folder, 2);
  options.max_calls = 2;
  options.ops = "relu";
  OpObserve scope(options);
  for (int i = 0; i < 5; ++i) at::relu(at::ones({2}));
  scope.hook().flush();
  CHECK(scope.result().written == 2);
  CHECK(scope.result().calls == 5);
  CHECK(rows_of(scope.result()).size() == 2);
}

TEST_CASE("A feature takes part in the calls that its condition picks", "[observe][feature]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const auto calls_under = [&](Condition condition) {
    const auto scope =
        apply_feature("dump_op_args", make_dict({{"ops", "relu"}, {"output_dir", folder.path()}, {"detail", 0}}),
                      std::move(condition));
    at::relu(at::ones({2}));
    at::relu(at::ones({2}, at::kDouble));
    at::exp(at::ones({2}));
    return *find_key(scope->hook()->report(), "calls")->get_if<int64_t>();
  };
  CHECK(calls_under(nullptr) == 2);
  CHECK(calls_under([](OpCall& call) { return flatten_tensors(call.args()).front().scalar_type() == at::kDouble; }) ==
        1);
  CHECK(calls_under([](OpCall&) -> bool { throw std::runtime_error("planted"); }) == 0);
  CHECK_THROWS_AS(apply_feature("no_such_feature", make_dict({})), Error);
  CHECK_THROWS_AS(apply_feature("fallback", make_dict({{"detail", 0}})), Error);
}

TEST_CASE("A condition leaves executors, failures and other hooks as they are", "[feature]") {
  const QuietLog quiet;
  class Doubling final : public Hook {
   public:
    std::string_view name() const override { return "Doubling"; }
    bool is_executor() const override { return true; }
    void execute(OpCall& call) override {
      call.frame().proceed();
      test::replace_results(call, [](const at::Tensor& right) { return right * 2; });
    }
  };
  const auto recording = std::make_shared<test::RecordingHook>();
  HookScope watch(recording, test::admitting("relu"));
  watch.enter();
  HookScope scope(
      std::make_shared<ConditionalHook>(std::make_shared<Doubling>(),
                                        [](OpCall& call) { return flatten_tensors(call.args()).front().numel() > 2; }),
      test::admitting("relu"));
  scope.enter();
  CHECK(at::relu(at::ones({2})).equal(at::ones({2})));
  CHECK(at::relu(at::ones({3})).equal(at::ones({3}) * 2));
  scope.leave();
  watch.leave();
  CHECK(recording->seen().size() == 2);
}
