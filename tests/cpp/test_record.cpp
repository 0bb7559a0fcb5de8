// OpRecord from C++: whose call made a tensor, which values are the same, and writes behind torch's back.
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <thread>

#include "catch.h"
#include "quiet_log.h"
#include "record/record_hook.h"
#include "record/recording_file.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::TemporaryFolder;

namespace {

// The recording of `work`.
template <class Work>
Recording recorded(Work&& work, bool statistics = true) {
  TemporaryFolder folder;
  RecordOptions options;
  options.output_dir = folder.path();
  options.statistics = statistics;
  std::string path;
  const QuietLog quiet;
  {
    OpRecord scope(options);
    work();
    scope.hook().flush();
    path = scope.result().path;
    CHECK(scope.result().failure.empty());
  }
  Recording read = read_recording(path);
  CHECK(read.complete);
  CHECK(read.damage.empty());
  return read;
}

const RecordedCall& call_of(const Recording& run, std::string_view op, size_t number = 0) {
  for (const RecordedCall& call : run.calls) {
    if (run.string(call.op) == op && number-- == 0) return call;
  }
  FAIL("no call of " << op);
  return run.calls.front();
}

const RecordedValue& input(const Recording& run, const RecordedCall& call, size_t number = 0) {
  return run.values[run.inputs(call)[number].value];
}

std::string place(const Recording& run, const RecordedUse& use) {
  return std::string(run.string(use.place));
}

}  // namespace

TEST_CASE("A tensor leads to the call that made it", "[record]") {
  const at::Tensor x = at::arange(6, at::kFloat);
  const Recording run = recorded([&] {
    const at::Tensor negative = at::neg(x), other = at::neg(x);
    at::add(negative, other);
  });
  const RecordedCall& add = call_of(run, "aten::add.Tensor");
  REQUIRE(add.inputs == 2);
  for (size_t i = 0; i < 2; ++i) {
    const RecordedValue& value = input(run, add, i);
    CHECK(value.origin == Origin::kCall);
    CHECK(&run.calls[value.producer] == &call_of(run, "aten::neg", i));
    CHECK(value.min == -5);
  }
  const RecordedCall& first = call_of(run, "aten::neg");
  CHECK(input(run, first).origin == Origin::kUnknown);
  CHECK(run.inputs(first)[0].value == run.inputs(call_of(run, "aten::neg", 1))[0].value);
}

TEST_CASE("A tensor that was written is another value, by the call that wrote it", "[record]") {
  at::Tensor x = at::ones({4});
  const Recording run = recorded([&] {
    at::neg(x);
    x.mul_(3);
    at::neg(x);
  });
  const RecordedCall& write = call_of(run, "aten::mul_.Scalar");
  REQUIRE(write.outputs == 2);
  CHECK(place(run, run.outputs(write)[1]) == "written args[0]");
  CHECK(run.outputs(write)[0].value == run.outputs(write)[1].value);
  const RecordedValue& after = input(run, call_of(run, "aten::neg", 1));
  CHECK(after.max == 3);
  CHECK(&run.calls[after.producer] == &write);
  CHECK(input(run, call_of(run, "aten::neg")).max == 1);
}

TEST_CASE("Tensors that show the same elements are a single value as long as they count their writes together",
          "[record]") {
  at::Tensor x = at::ones({4});
  const at::Tensor same = x.detach(), apart = x.variable_data();
  const Recording run = recorded([&] {
    at::neg(x);
    at::neg(same);
    at::neg(apart);
    apart.mul_(7);  // x does not count it: the facts about x stay
    at::neg(apart);
    same.mul_(2);  // x does
    at::neg(x);
  });
  const auto number = [&](size_t call) { return run.inputs(call_of(run, "aten::neg", call))[0].value; };
  CHECK(number(0) == number(1));
  CHECK(number(0) != number(2));
  CHECK(run.values[number(3)].max == 7);
  CHECK(run.values[number(4)].max == 14);
}

TEST_CASE("Parts of the same memory are values of their own", "[record]") {
  const at::Tensor x = at::arange(12, at::kFloat);
  const Recording run = recorded([&] {
    at::neg(x.slice(0, 0, 4));
    at::neg(x.slice(0, 4, 8));
    at::neg(x.view({3, 4}));
    at::neg(x.view({3, 4}).t());
    at::neg(x.view(at::kInt));
  });
  const auto value = [&](size_t call) -> const RecordedValue& { return input(run, call_of(run, "aten::neg", call)); };
  CHECK(value(0).max == 3);
  CHECK(value(1).max == 7);
  CHECK(value(2).hash != value(3).hash);
  CHECK(value(3).norm == value(2).norm);
  CHECK(value(4).dtype == at::kInt);
  CHECK(value(4).max == x.view(at::kInt).max().item<int>());
}

TEST_CASE("Memory that is used again is another tensor's", "[record]") {
  const Recording run = recorded([&] {
    for (int i = 0; i < 200; ++i) at::neg(at::ones({1000}).mul_(i));
  });
  for (size_t i = 0; i < 200; ++i) {
    const RecordedValue& value = input(run, call_of(run, "aten::neg", i));
    CHECK(value.max == static_cast<double>(i));
    CHECK(run.string(run.calls[value.producer].op) == "aten::mul_.Scalar");
  }
}

TEST_CASE("A call that raised has its error and no outputs", "[record]") {
  const Recording run = recorded([&] { CHECK_THROWS(at::mm(at::ones({2, 3}), at::ones({2, 3}))); });
  const RecordedCall& call = call_of(run, "aten::mm");
  CHECK(run.string(call.error).find("shapes cannot be multiplied") != std::string_view::npos);
  CHECK(call.inputs == 2);
  CHECK(call.outputs == 0);
}

TEST_CASE("Without statistics there are links", "[record]") {
  const at::Tensor x = at::ones({4});
  const Recording run = recorded([&] { at::neg(at::neg(x)); }, /*statistics=*/false);
  const RecordedValue& value = input(run, call_of(run, "aten::neg", 1));
  CHECK_FALSE(value.known);
  CHECK(value.hash == 0);
  CHECK(&run.calls[value.producer] == &call_of(run, "aten::neg"));
}

TEST_CASE("A second thread's calls are rows like others while both write", "[record]") {
  constexpr int kCalls = 300;
  const Recording run = recorded([&] {
    TemporaryFolder folder;
    const auto work = [] {
      for (int i = 0; i < kCalls; ++i) at::neg(at::ones({50}).mul_(i));
    };
    RecordOptions options;
    options.output_dir = folder.path();
    std::thread other([&] {
      OpRecord scope(options);
      work();
      CHECK(scope.result().failure.empty());
    });
    work();
    other.join();
  });
  CHECK(std::count_if(run.calls.begin(), run.calls.end(),
                      [&](const RecordedCall& call) { return run.string(call.op) == "aten::neg"; }) == kCalls);
  for (const RecordedCall& call : run.calls) CHECK(call.thread == 0);
}
