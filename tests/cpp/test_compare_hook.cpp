// OpAutoCompare from C++: an executor plays the device that computes wrongly.
#include <ATen/TensorOperators.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/transpose.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "calls/call_store.h"
#include "catch.h"
#include "compare/compare_hook.h"
#include "compare/ordered_pool.h"
#include "hooks/op_traits.h"
#include "quiet_log.h"
#include "recording_hook.h"
#include "scoped_variable.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::admitting;
using op_tools::test::QuietLog;
using op_tools::test::TemporaryFolder;

namespace {

// A device whose mm is half a percent too large.
class WrongProduct final : public Hook {
 public:
  std::string_view name() const override { return "WrongProduct"; }
  bool is_executor() const override { return true; }
  void execute(OpCall& call) override {
    call.frame().proceed();
    test::replace_results(call, [](const at::Tensor& right) { return right * 1.005; });
  }
};

// A device that shows other elements of the same memory.
class WrongView final : public Hook {
 public:
  std::string_view name() const override { return "WrongView"; }
  bool is_executor() const override { return true; }
  void execute(OpCall& call) override {
    call.frame().proceed();
    test::replace_results(call, [](const at::Tensor& right) { return at::transpose(right, 0, 1); });
  }
};

// A device whose result in place does not arrive.
class LostWrite final : public Hook {
 public:
  std::string_view name() const override { return "LostWrite"; }
  bool is_executor() const override { return true; }
  void execute(OpCall& call) override {
    const at::Tensor input = *sequence_items(call.args())->front().get_if<at::Tensor>();
    const at::Tensor before = at::clone(input);
    call.frame().proceed();
    std::memcpy(input.mutable_data_ptr(), before.const_data_ptr(), input.nbytes());
  }
};

std::vector<std::string> deciding(OpAutoCompare& scope) {
  const Value report = scope.hook().report();
  std::vector<std::string> all;
  for (const Value& row : *sequence_items(*find_key(report, "rows"))) {
    all.push_back(*find_key(row, "deciding")->get_if<std::string>());
  }
  return all;
}

CompareOptions compare_into(const TemporaryFolder& folder) {
  CompareOptions options;
  options.output_dir = folder.path();
  return options;
}

}  // namespace

TEST_CASE("The part of an input that a result shows is judged without float64, and a wrong view is found",
          "[compare]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const at::Tensor x = at::rand({20, 20});
  {
    OpAutoCompare scope(compare_into(folder));
    at::slice(at::transpose(x, 0, 1), 0, 3, 7);
    CHECK(scope.result().failed == 0);
    CHECK(deciding(scope) == std::vector<std::string>{"bits", "bits"});
  }
  OpAutoCompare scope(compare_into(folder));
  HookScope wrong(std::make_shared<WrongView>(), admitting("view"));
  wrong.enter();
  x.view({20, 20});
  wrong.leave();
  CHECK(scope.result().failed == 1);
}

TEST_CASE("A result in place that did not arrive is no view of an input", "[compare]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  at::Tensor x = at::rand({20, 20}) - 0.5;
  OpAutoCompare scope(compare_into(folder));
  HookScope wrong(std::make_shared<LostWrite>(), admitting("relu_"));
  wrong.enter();
  at::relu_(x);
  wrong.leave();
  CHECK(scope.result().failed == 1);
}

TEST_CASE("A wrong operator is found, saved and blamed alone", "[compare]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const at::Tensor x = at::rand({20, 20});
  OpAutoCompare scope(compare_into(folder));
  {
    HookScope wrong(std::make_shared<WrongProduct>(), admitting("mm"));
    wrong.enter();
    at::relu(at::mm(at::exp(x), x));
    wrong.leave();
  }
  const CompareResult result = scope.result();
  CHECK(result.failed == 1);
  CHECK(result.passed >= 2);
  CHECK(result.saved == 1);
  const auto failed = std::find_if(result.ops.begin(), result.ops.end(), [](const auto& op) { return op.failed > 0; });
  REQUIRE(failed != result.ops.end());
  CHECK(failed->op == "aten::mm");
  scope.hook().flush();
  CHECK(find_calls(result.root).calls.size() == 1);  // on the CPU there is the device's side alone
  std::ifstream csv(result.root + "/autocompare.csv");
  std::string titles;
  std::getline(csv, titles);
  CHECK(titles.find("op,id,step,level,phase,what,part,index,verdict") == 0);
}

TEST_CASE("Told to raise, a failure stops the program where it is", "[compare]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  CompareOptions options = compare_into(folder);
  options.raise_on_failure = true;
  const at::Tensor x = at::rand({20, 20});
  OpAutoCompare scope(options);
  HookScope wrong(std::make_shared<WrongProduct>(), admitting("mm"));
  wrong.enter();
  CHECK_NOTHROW(at::exp(x));
  CHECK_THROWS_AS(at::mm(x, x), Error);
  CHECK(scope.result().failed == 1);
}

TEST_CASE("Work beside the program is handed over in order", "[compare]") {
  std::vector<int> order;
  std::atomic<int> done{0};
  {
    OrderedPool pool(3, 1000);
    for (int i = 0; i < 50; ++i) {
      pool.submit(i % 7 == 0 ? 900 : 10, [&, i]() -> OrderedPool::Commit {
        std::this_thread::yield();
        ++done;
        return [&order, i] { order.push_back(i); };
      });
      if (i == 20) {
        pool.flush();
        CHECK(order.size() == 21);
      }
    }
  }
  CHECK(done == 50);
  REQUIRE(order.size() == 50);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("Work that throws in the thread that hands it over is passed by", "[compare]") {
  OrderedPool pool(1, 1);
  std::atomic<bool> go{false};
  std::vector<int> order;
  pool.submit(10, [&]() -> OrderedPool::Commit {
    while (!go) std::this_thread::yield();
    return [&] { order.push_back(0); };
  });
  CHECK_THROWS_AS(pool.submit(10, []() -> OrderedPool::Commit { throw std::runtime_error("planted"); }),
                  std::runtime_error);
  go = true;
  pool.flush();  // would wait for ever
  pool.submit(10, [&]() -> OrderedPool::Commit { return [&] { order.push_back(2); }; });
  pool.flush();
  CHECK(order == std::vector<int>{0, 2});
}

TEST_CASE("A recurrent network draws between its layers in training, with a probability above 0", "[compare]") {
  const auto draws = [](double dropout, bool train) {
    const at::Tensor x = at::ones({2, 2});
    return draws_random_numbers("lstm", make_tuple({x, x, x, true, 2, dropout, train, false, true}), make_dict({}));
  };
  CHECK(draws(0.2, true));
  CHECK_FALSE(draws(0.2, false));
  CHECK_FALSE(draws(0, true));
}
