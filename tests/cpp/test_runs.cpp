// The alignment of two recordings and the verdicts on their calls, with recordings that are made in memory.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "hooks/call_items.h"
#include "record/made_recording.h"
#include "runs/alignment.h"
#include "runs/call_keys.h"
#include "runs/divergence.h"
#include "runs/key_alignment.h"
#include "runs/many_runs.h"
#include "runs/recorded_items.h"
#include "runs/run_comparison.h"
#include "runs/run_rows.h"
#include "runs/value_difference.h"

using namespace op_tools;  // NOLINT: a test

namespace {

// A program of calls on vectors of 16 elements, written down call by call.
class MadeRun {
 public:
  // A tensor that was there before; its content is named by a number.
  uint32_t parameter(const std::string& name, double content) {
    RecordedValue value = value_of(content);
    value.origin = Origin::kParameter;
    value.name = text(name);
    run_.values.push_back(value);
    return static_cast<uint32_t>(run_.values.size() - 1);
  }

  // A call that reads these values; returns its result.
  uint32_t call(const std::string& op, const std::vector<uint32_t>& inputs, double content,
                const std::string& module = "") {
    RecordedCall call;
    call.id = run_.calls.size() + 1;
    call.op = text(op);
    call.module = text(module);
    call.step = step;
    call.first_use = static_cast<uint32_t>(run_.uses.size());
    for (const uint32_t input : inputs) run_.uses.push_back({text("args[0]"), input});
    call.inputs = static_cast<uint32_t>(inputs.size());
    RecordedValue value = value_of(content);
    value.origin = Origin::kCall;
    value.producer = static_cast<uint32_t>(run_.calls.size());
    run_.values.push_back(value);
    const auto result = static_cast<uint32_t>(run_.values.size() - 1);
    run_.uses.push_back({text("result"), result});
    call.outputs = 1;
    run_.calls.push_back(call);
    return result;
  }
  RecordedCall& last() { return run_.calls.back(); }
  void set_scalars(const std::string& scalars) { last().scalars = text(scalars); }
  RecordedValue& value(uint32_t number) { return run_.values[number]; }
  // All tensors so far are on CUDA, with these switches for TF32.
  void move_to_cuda(bool cudnn, bool matmul) {
    for (RecordedValue& value : run_.values) value.device = text("cuda:0");
    run_.header = make_dict({{"tf32", make_dict({{"cudnn", cudnn}, {"matmul", matmul}})}});
  }

  const Recording& run() const { return run_; }
  int64_t step = 0;

 private:
  uint32_t text(const std::string& text) {
    const auto entry = std::find(run_.strings.begin(), run_.strings.end(), text);
    if (entry != run_.strings.end()) return static_cast<uint32_t>(entry - run_.strings.begin());
    run_.strings.push_back(text);
    return static_cast<uint32_t>(run_.strings.size() - 1);
  }
  // The statistics of a random vector that the content's number stands for; its fraction is a change of a single
  // element.
  RecordedValue value_of(double content) {
    std::mt19937 random(static_cast<uint32_t>(std::floor(content)));
    std::vector<double> elements(16);
    for (double& element : elements) element = std::normal_distribution<double>()(random);
    elements[3] += content - std::floor(content);
    RecordedValue value;
    value.known = true;
    value.dtype = c10::ScalarType::Float;
    value.shape = value.stride = 1;
    value.min = *std::min_element(elements.begin(), elements.end());
    value.max = *std::max_element(elements.begin(), elements.end());
    double squares = 0;
    for (size_t i = 0; i < elements.size(); ++i) {
      value.mean += elements[i] / 16;
      squares += elements[i] * elements[i];
      for (size_t k = 0; k < kProjections; ++k)
        value.projections[k] += ((i * (2 * k + 3) + k) & 4) ? elements[i] : -elements[i];
    }
    value.norm = std::sqrt(squares);
    value.hash = std::hash<double>()(content) | 1;
    return value;
  }

  Recording run_ = [] {
    Recording run;
    run.strings = {""};
    run.lists = {{}, {16}};
    return run;
  }();
};

using RunPairs = std::vector<std::pair<uint32_t, uint32_t>>;

RunPairs pairs_of(const Recording& a, const Recording& b) {
  const Alignment alignment = align_runs(a, b);
  RunPairs pairs;
  for (uint32_t i = 0; i < alignment.b_of_a.size(); ++i) {
    if (alignment.b_of_a[i] != kNoCall) pairs.emplace_back(i, alignment.b_of_a[i]);
  }
  return pairs;
}

Divergence compared(const Recording& a, const Recording& b) {
  return find_divergence(a, b, align_runs(a, b));
}

}  // namespace

TEST_CASE("aligned keys are a longest common subsequence", "[runs]") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> a(random() % 40), b(random() % 40);
    for (auto* const side : {&a, &b}) {
      for (uint64_t& key : *side) key = 1 + random() % 4;  // few keys: hardly an anchor, and many ties
    }
    std::vector<std::vector<size_t>> longest(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < b.size(); ++j) {
        longest[i + 1][j + 1] = a[i] == b[j] ? longest[i][j] + 1 : std::max(longest[i][j + 1], longest[i + 1][j]);
      }
    }
    const Matches matches = align_keys(a, b);
    for (size_t i = 0; i < matches.size(); ++i) {
      REQUIRE(a.at(matches[i].first) == b.at(matches[i].second));
      if (i > 0) REQUIRE((matches[i - 1].first < matches[i].first && matches[i - 1].second < matches[i].second));
    }
    // Anchors may cost a pair; without them it is the optimum.
    if (unique_matches(a, b).empty()) CHECK(matches.size() == longest[a.size()][b.size()]);
  }
}

TEST_CASE("a part with too many edits stays without pairs, and ends", "[runs]") {
  std::vector<uint64_t> a, b;
  for (uint64_t i = 0; i < 1000; ++i) {
    a.push_back(1 + i % 2);
    b.push_back(i % 7 == 0 ? 1 : 3 + i % 2);
  }
  CHECK(align_keys(a, b, 10).size() < 20);  // the ends, and no more
  CHECK(align_keys(a, a, 10).size() == 1000);
}

TEST_CASE("an inserted, a deleted, a moved and a replaced call leave the other pairs right", "[runs]") {
  MadeRun a, b;
  const uint32_t in_a = a.parameter("x", 1), in_b = b.parameter("x", 1);
  for (int i = 0; i < 8; ++i) a.call("aten::relu", {in_a}, 10 + i, "Net." + std::to_string(i));
  SECTION("inserted at the front") {
    b.call("aten::relu", {in_b}, 99, "Net.extra");
    for (int i = 0; i < 8; ++i) b.call("aten::relu", {in_b}, 10 + i, "Net." + std::to_string(i));
    CHECK(pairs_of(a.run(), b.run()) == RunPairs{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 8}});
  }
  SECTION("deleted") {
    for (int i = 0; i < 8; ++i) {
      if (i != 3) b.call("aten::relu", {in_b}, 10 + i, "Net." + std::to_string(i));
    }
    CHECK(pairs_of(a.run(), b.run()) == RunPairs{{0, 0}, {1, 1}, {2, 2}, {4, 3}, {5, 4}, {6, 5}, {7, 6}});
  }
  SECTION("moved") {
    for (const int i : {0, 1, 4, 2, 3, 5, 6, 7}) b.call("aten::relu", {in_b}, 10 + i, "Net." + std::to_string(i));
    CHECK(pairs_of(a.run(), b.run()) == RunPairs{{0, 0}, {1, 1}, {2, 3}, {3, 4}, {4, 2}, {5, 5}, {6, 6}, {7, 7}});
  }
  SECTION("replaced") {
    for (int i = 0; i < 8; ++i) {
      b.call(i == 5 ? "aten::gelu" : "aten::relu", {in_b}, i == 5 ? 77 : 10 + i, "Net." + std::to_string(i));
    }
    const Alignment alignment = align_runs(a.run(), b.run());
    REQUIRE(alignment.groups.size() == 1);
    CHECK(alignment.groups[0].a == CallNumbers{5});
    CHECK(alignment.groups[0].b == CallNumbers{5});
    CHECK(pairs_of(a.run(), b.run()).size() == 7);
  }
}

TEST_CASE("equal layers without module names are told apart by the bits of their tensors", "[runs]") {
  MadeRun a, b;
  uint32_t in_a = a.parameter("x", 1), in_b = b.parameter("x", 1);
  for (int i = 0; i < 6; ++i) in_a = a.call("aten::relu", {in_a}, 10 + i);
  for (int i = 0; i < 6; ++i) {
    if (i != 2) in_b = b.call("aten::relu", {in_b}, 10 + i);
  }
  const RunPairs pairs = pairs_of(a.run(), b.run());
  CHECK(std::count(pairs.begin(), pairs.end(), std::pair<uint32_t, uint32_t>{5, 4}) == 1);
  CHECK(std::count(pairs.begin(), pairs.end(), std::pair<uint32_t, uint32_t>{0, 0}) == 1);
}

TEST_CASE("calls fused on one side become a group where their result agrees", "[runs]") {
  MadeRun a, b;
  const uint32_t in_a = a.parameter("x", 1), in_b = b.parameter("x", 1);
  a.call("aten::relu", {in_a}, 5);
  const uint32_t product = a.call("aten::mul", {in_a}, 10);
  a.call("aten::neg", {a.call("aten::add", {product}, 11)}, 12);
  b.call("aten::relu", {in_b}, 5);
  b.call("aten::neg", {b.call("aten::addcmul", {in_b}, 11)}, 12);
  const Alignment alignment = align_runs(a.run(), b.run());
  REQUIRE(alignment.groups.size() == 1);
  CHECK(alignment.groups[0].a == CallNumbers{1, 2});
  CHECK(alignment.groups[0].b == CallNumbers{1});
  const Divergence divergence = find_divergence(a.run(), b.run(), alignment);
  CHECK(divergence.first == kNoRow);
  const RunRow row = run_row(a.run(), b.run(), alignment, divergence, divergence.row_of_b[1], false);
  CHECK(row.op == "aten::mul + aten::add");
  CHECK(row.op_b == "aten::addcmul");
}

TEST_CASE("a comparison of two recordings answers by row, without Python", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const uint32_t in = run->parameter("x", 1);
    const uint32_t wrong = run->call("aten::mul", {in}, run == &a ? 10 : 99);
    run->call("aten::neg", {run->call("aten::exp", {wrong}, run == &a ? 11 : 98)}, run == &a ? 12 : 97);
  }
  const RunComparison comparison(std::make_shared<Recording>(a.run()), std::make_shared<Recording>(b.run()));
  CHECK(comparison.divergence().first == 0);
  CHECK(comparison.births() == std::vector<uint32_t>{0});
  CHECK(comparison.counts() == std::map<std::string, size_t>{{"born here", 1}, {"carried", 2}});
  CHECK(comparison.worst("carried").size() == 2);
  CHECK(comparison.chain(0) == std::vector<uint32_t>{0, 1, 2});
  CHECK(comparison.row(0).op == "aten::mul");
  CHECK(comparison.calls_of(2) == std::pair(CallNumbers{2}, CallNumbers{2}));
  CHECK_THROWS_AS(comparison.row(3), std::out_of_range);

  const RunComparison same(comparison.a(), comparison.a(), comparison.a().get());
  CHECK(same.divergence().first == kNoRow);
  CHECK(same.counts() == std::map<std::string, size_t>{{"agrees", 3}});
}

TEST_CASE("backward calls are paired by their forward calls, in whatever order the engine runs them", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const uint32_t in = run->parameter("x", 1);
    run->call("torch.mul", {in}, 10, "Net.one");
    run->call("torch.mul", {in}, 11, "Net.two");
    for (const uint64_t forward : run == &a ? std::vector<uint64_t>{2, 1} : std::vector<uint64_t>{1, 2}) {
      run->call("torch.mul", {in}, 20.0 + static_cast<double>(forward));
      run->last().phase = Phase::kBackward;
      run->last().forward_id = forward;
    }
  }
  CHECK(pairs_of(a.run(), b.run()) == RunPairs{{0, 0}, {1, 1}, {2, 3}, {3, 2}});
  CHECK(compared(a.run(), b.run()).first == kNoRow);
}

TEST_CASE("a difference is born once, carried along its producers, and may heal", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const double wrong = run == &b ? 0.5 : 0;
    const uint32_t in = run->parameter("x", 1);
    const uint32_t sine = run->call("aten::sin", {in}, 10);
    const uint32_t product = run->call("aten::mul", {sine}, 11 + wrong, "Net.fc");
    const uint32_t other = run->call("aten::cos", {in}, 12);
    const uint32_t sum = run->call("aten::add", {product, other}, 13 + wrong);
    run->call("aten::clamp", {sum}, 14);
  }
  const Divergence divergence = compared(a.run(), b.run());
  REQUIRE(divergence.rows.size() == 5);
  CHECK(divergence.first == 1);
  const CallVerdict expected[] = {CallVerdict::kAgrees, CallVerdict::kBorn, CallVerdict::kAgrees, CallVerdict::kCarried,
                                  CallVerdict::kHealed};
  for (size_t i = 0; i < 5; ++i) CHECK(divergence.rows[i].verdict == expected[i]);
  CHECK(divergence.rows[3].source == 1);
  CHECK(divergence.rows[3].via == 1);
  CHECK(divergence.first_by_step == std::vector<std::pair<int64_t, uint32_t>>{{0, 1}});
}

TEST_CASE("a call of a single run is named where it changes the inputs of others", "[runs]") {
  MadeRun a, b;
  const uint32_t in_a = a.parameter("x", 1), in_b = b.parameter("x", 1);
  a.call("aten::mul", {a.call("aten::sin", {in_a}, 10)}, 11);
  SECTION("it changes them") {
    b.call("aten::mul", {b.call("aten::relu", {b.call("aten::sin", {in_b}, 10)}, 50)}, 51);
    const Divergence divergence = compared(a.run(), b.run());
    REQUIRE(divergence.first != kNoRow);
    CHECK(divergence.rows[divergence.first].verdict == CallVerdict::kOnlyB);
    CHECK(divergence.rows[divergence.first].finding == Finding::kExtraCall);
    CHECK(divergence.rows[divergence.row_of_a[1]].verdict == CallVerdict::kCarried);
  }
  SECTION("it changes nothing") {
    b.call("aten::mul", {b.call("aten::clone", {b.call("aten::sin", {in_b}, 10)}, 10)}, 11);
    CHECK(compared(a.run(), b.run()).first == kNoRow);
  }
}

TEST_CASE("a result without statistics is not compared, and most of them are no agreement", "[runs]") {
  for (const int unknown : {1, 2, 3}) {
    MadeRun a, b;
    for (auto* const run : {&a, &b}) {
      uint32_t value = run->parameter("x", 1);
      for (int i = 0; i < 4; ++i) {
        value = run->call("aten::sin", {value}, 10 + i);
        if (i < unknown) run->value(value).known = false, run->value(value).hash = 0;
      }
    }
    const Divergence divergence = compared(a.run(), b.run());
    CHECK(divergence.first == kNoRow);
    for (int i = 0; i < 4; ++i) {
      CHECK(divergence.rows[i].verdict == (i < unknown ? CallVerdict::kNotCompared : CallVerdict::kAgrees));
    }
    CHECK(divergence.is_judged == (unknown <= 2));
  }
}

TEST_CASE("calls of a single run say nothing unless a call of both reads their results", "[runs]") {
  for (const bool is_read : {true, false}) {
    MadeRun a, b;
    const uint32_t in_a = a.call("aten::sin", {a.parameter("x", 1)}, 10);
    uint32_t in_b = b.call("aten::sin", {b.parameter("x", 1)}, 10);
    for (int i = 0; i < 6; ++i) in_b = b.call("aten::clone", {in_b}, 10);
    a.call("aten::cos", {in_a}, 20);
    b.call("aten::cos", {is_read ? in_b : b.parameter("y", 10)}, 20);
    const Divergence divergence = compared(a.run(), b.run());
    CHECK(divergence.first == kNoRow);
    CHECK(divergence.is_judged == is_read);
  }
}

TEST_CASE("a value of a group that only gradients read is none of its results: the wrong result is named in the group",
          "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const uint32_t in = run->call("aten::relu", {run->parameter("x", 1)}, 5);
    const uint32_t product = run == &a ? run->call("aten::mul", {in}, 10) : in;
    const uint32_t sum = run == &a ? run->call("aten::add", {product}, 11) : run->call("aten::addcmul", {in}, 11.5);
    run->call("aten::neg", {sum}, run == &a ? 12 : 12.5);
    run->call("aten::mul_backward", {product}, 20);
    run->last().phase = Phase::kBackward;
  }
  const Alignment alignment = align_runs(a.run(), b.run());
  REQUIRE(alignment.groups.size() == 1);
  const Divergence divergence = find_divergence(a.run(), b.run(), alignment);
  REQUIRE(divergence.first != kNoRow);
  CHECK(divergence.first == divergence.row_of_b[1]);
  CHECK(divergence.rows[divergence.first].finding == Finding::kNumbers);
}

TEST_CASE("calls of the same name whose results stand for those of others have no partners", "[runs]") {
  MadeRun a, b;
  const uint32_t in_a = a.call("aten::sin", {a.parameter("x", 1)}, 10);
  a.call("aten::add", {a.call("aten::unbind", {a.call("aten::mm", {in_a}, 30)}, 50)}, 51);
  const uint32_t in_b = b.call("aten::sin", {b.parameter("x", 1)}, 10);
  b.call("aten::add", {b.call("aten::addmm", {b.call("aten::unbind", {in_b}, 60)}, 50)}, 51);
  CHECK(pairs_of(a.run(), b.run()) == RunPairs{{0, 0}, {3, 3}});
  CHECK(compared(a.run(), b.run()).first == kNoRow);
}

TEST_CASE("a call of a single run that changes nothing in the end hides no wrong call after it", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    uint32_t value = run->call("aten::sin", {run->parameter("x", 1)}, 10);
    if (run == &b) value = run->call("aten::relu", {value}, 50);
    value = run->call("aten::mul", {value}, run == &b ? 51 : 11);
    value = run->call("aten::clamp", {value}, 14);  // equal again
    run->call("aten::tanh", {value}, run == &b ? 20.5 : 20);
  }
  const Divergence divergence = compared(a.run(), b.run());
  REQUIRE(divergence.first != kNoRow);
  CHECK(divergence.first == divergence.row_of_a[3]);
  CHECK(divergence.rows[divergence.row_of_b[1]].finding == Finding::kNone);
  CHECK(divergence.rows[divergence.row_of_a[1]].verdict == CallVerdict::kHealed);
}

TEST_CASE("a late difference is behind those seen before, wherever it was made", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const uint32_t in = run->call("aten::sin", {run->parameter("x", 1)}, 10);
    const uint32_t extra = run == &b ? run->call("aten::relu", {in}, 50) : in;
    const uint32_t wrong = run->call("aten::cos", {in}, run == &b ? 12.5 : 12);
    run->call("aten::exp", {wrong}, run == &b ? 13.5 : 13);
    run->call("aten::mul", {extra}, run == &b ? 51 : 11);
  }
  const Divergence divergence = compared(a.run(), b.run());
  REQUIRE(divergence.first != kNoRow);
  CHECK(divergence.first == divergence.row_of_a[1]);
  CHECK(divergence.rows[divergence.row_of_b[1]].finding == Finding::kExtraCall);
  CHECK(divergence.rows[divergence.row_of_b[1]].seen_in == divergence.row_of_a[3]);
}

TEST_CASE("NaN, another parameter and an error are findings of their own", "[runs]") {
  MadeRun a, b;
  const uint32_t in_a = a.parameter("x", 1);
  const uint32_t result_a = a.call("aten::sin", {in_a}, 10);
  SECTION("NaN") {
    const uint32_t result = b.call("aten::sin", {b.parameter("x", 1)}, 10.25);
    b.value(result).nan = 1;
    const Divergence divergence = compared(a.run(), b.run());
    REQUIRE(divergence.first == 0);
    CHECK(divergence.rows[0].finding == Finding::kNonfinite);
  }
  SECTION("NaN on both sides is no difference of its own") {
    const uint32_t result = b.call("aten::sin", {b.parameter("x", 1)}, 10);
    a.value(result_a).nan = b.value(result).nan = 1;
    CHECK(compared(a.run(), b.run()).first == kNoRow);
  }
  SECTION("a parameter") {
    b.call("aten::sin", {b.parameter("x", 2)}, 12);
    const Divergence divergence = compared(a.run(), b.run());
    REQUIRE(divergence.first == 0);
    CHECK(divergence.rows[0].finding == Finding::kFirstInput);
  }
  SECTION("an error") {
    b.call("aten::sin", {b.parameter("x", 1)}, 10);
    b.last().outputs = 0;
    b.last().error = b.last().op;
    const Divergence divergence = compared(a.run(), b.run());
    REQUIRE(divergence.first == 0);
    CHECK(divergence.rows[0].finding == Finding::kError);
  }
}

TEST_CASE("rounding is no difference, with a noise recording not even where it grows", "[runs]") {
  MadeRun a, b, noise;
  for (auto* const run : {&a, &b, &noise}) {
    const double change = run == &a ? 0 : run == &b ? 1e-7 : 2e-7;
    const uint32_t in = run->parameter("x", 1);
    const uint32_t product = run->call("aten::mul", {in}, 10 + change);
    run->call("aten::exotic", {product}, 11 + 1e4 * change);
  }
  const Divergence alone = compared(a.run(), b.run());
  CHECK(alone.rows[0].verdict == CallVerdict::kAgrees);
  CHECK(alone.first == 1);  // 1e-7 became 1e-3: more than an operator usually makes of it
  const Alignment alignment = align_runs(a.run(), b.run());
  const Noise known = noise_of(a.run(), noise.run(), align_runs(a.run(), noise.run()));
  const Divergence with_noise = find_divergence(a.run(), b.run(), alignment, &known);
  CHECK(with_noise.first == kNoRow);
  CHECK(with_noise.rows[1].noise > 0);
}

TEST_CASE("memory that was never written is not compared", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const double garbage = run == &a ? 30 : 40;
    const uint32_t memory = run->call("aten::empty.memory_format", {}, garbage);
    const uint32_t again = run->parameter("", garbage + 1);  // read again: other bits, the same maker
    run->value(again) = run->value(memory);
    run->value(again).hash ^= garbage == 30 ? 2 : 4;
    run->call("aten::view", {again}, garbage);
    run->call("aten::sin", {run->parameter("x", 1)}, 10);
  }
  CHECK(compared(a.run(), b.run()).first == kNoRow);
}

TEST_CASE("other strides over the same memory show nothing that was never written", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    const uint32_t shown = run->call("aten::as_strided_", {run->parameter("x", 1)}, 1);
    run->call("aten::sin", {shown}, run == &a ? 10 : 20);
  }
  CHECK(compared(a.run(), b.run()).first == 1);
}

TEST_CASE("steps that a run did not record are in no row", "[runs]") {
  MadeRun a, b;
  for (auto* const run : {&a, &b}) {
    for (run->step = 0; run->step < (run == &a ? 3 : 2); ++run->step)
      run->call("aten::sin", {run->parameter("x", 1)}, 10);
  }
  const Alignment alignment = align_runs(a.run(), b.run());
  CHECK(alignment.steps_only_a == std::vector<int64_t>{2});
  CHECK(find_divergence(a.run(), b.run(), alignment).rows.size() == 2);
}

TEST_CASE("the difference of two values is proven by any of their statistics", "[runs]") {
  MadeRun a, b;
  const uint32_t value = a.parameter("x", 1), other = b.parameter("x", 1.5);
  const ValueDifference difference = difference_of(a.run(), value, b.run(), other);
  CHECK(difference.kind == ValueDifference::Kind::kNumbers);
  CHECK(difference.norm == Approx(0.5));  // a single element of all
  CHECK(difference_of(a.run(), value, a.run(), value).kind == ValueDifference::Kind::kSame);
  for (auto* const run : {&a, &b}) run->value(0).projections.fill(std::nan(""));
  CHECK(difference_of(a.run(), value, b.run(), other).norm > 0.01);  // by mean and norm alone
}

TEST_CASE("calls of a recording are items by operator, phase and their order in the step", "[runs]") {
  MadeRun run;
  const uint32_t x = run.parameter("x", 1);
  run.call("torch.relu", {x}, 2);
  run.call("torch.tanh", {x}, 3);
  run.call("torch.relu", {x}, 4);
  const uint64_t forward_id = run.last().id;
  run.call("torch.relu", {x}, 5);
  run.last().phase = Phase::kBackward;
  run.last().id = forward_id;
  run.step = 1;
  run.call("torch.relu", {x}, 6);
  const std::vector<uint64_t> items = recorded_items(run.run());
  const uint64_t first = item_in_order("torch.relu", Phase::kForward, 0);
  const uint64_t second = item_in_order("torch.relu", Phase::kForward, 1);
  const uint64_t tanh = item_in_order("torch.tanh", Phase::kForward, 0);
  // Backward of the torch level is captured with its forward call; each step counts from 0.
  CHECK(items == std::vector<uint64_t>{first, tanh, second, second, first});
  CHECK(first != second);
  CHECK(item_in_order("torch.relu", Phase::kBackward, 0) != first);
}

TEST_CASE("of five runs the odd run is named, with its first call", "[runs]") {
  std::vector<MadeRun> runs_made(5);
  for (size_t i = 0; i < runs_made.size(); ++i) {
    const double wrong = i == 3 ? 0.25 : 0;
    const uint32_t sine = runs_made[i].call("aten::sin", {runs_made[i].parameter("x", 1)}, 10);
    runs_made[i].call("aten::mul", {runs_made[i].call("aten::cos", {sine}, 11 + wrong)}, 12 + wrong);
  }
  std::vector<const Recording*> runs;
  for (const MadeRun& run : runs_made) runs.push_back(&run.run());
  const std::vector<OddCall> odd = find_odd_calls(runs).odd;
  REQUIRE(odd.size() == 1);
  CHECK(odd[0].run == 3);
  CHECK(odd[0].call == 1);
  CHECK(odd[0].others == 4);
  CHECK(find_odd_calls({runs[0], runs[1]}).odd.empty());
  const std::vector<OddCall> tie = find_odd_calls({runs[0], runs[3]}).odd;
  REQUIRE(tie.size() == 1);
  CHECK(tie[0].run == 1);
  CHECK(tie[0].call == 1);
  CHECK(tie[0].others == tie[0].like_it);
  CHECK_THROWS_AS(find_odd_calls({runs[0]}), Error);
}

TEST_CASE("calls with other numbers among their arguments may give other results", "[runs]") {
  std::vector<MadeRun> runs_made(3);
  for (size_t i = 0; i < runs_made.size(); ++i) {
    const uint32_t x = runs_made[i].parameter("x", 1);
    runs_made[i].call("aten::mul", {x}, 10 + static_cast<double>(i == 2));
    runs_made[i].set_scalars(i == 2 ? "{\"args[1]\":0.5}" : "{\"args[1]\":2.0}");
    runs_made[i].call("aten::sin", {x}, 20 + static_cast<double>(i == 1));
  }
  const std::vector<OddCall> odd = find_odd_calls({&runs_made[0].run(), &runs_made[1].run(), &runs_made[2].run()}).odd;
  REQUIRE(odd.size() == 1);
  CHECK(odd[0].run == 1);
  CHECK(odd[0].call == 1);
}

TEST_CASE("rows of a made recording are checked", "[runs]") {
  const auto recording = [](Value values, Value calls) {
    return make_recording(make_dict({{"values", std::move(values)}, {"calls", std::move(calls)}}));
  };
  const Value value = make_dict({{"dtype", "torch.float32"}, {"shape", make_list({2})}, {"hash", "00ff"}});
  const Value use = make_tuple({"args[0]", 0});
  const Recording run =
      recording(make_list({value}), make_list({make_dict({{"op", "aten::sin"}, {"inputs", make_list({use})}})}));
  CHECK(run.string(run.calls.at(0).op) == "aten::sin");
  CHECK(run.values.at(0).hash == 255);
  CHECK_THROWS_WITH(recording(make_list({make_dict({{"dtype", "torch.flout"}})}), make_list({})),
                    Catch::Contains("values[0]") && Catch::Contains("flout"));
  CHECK_THROWS_WITH(recording(make_list({}), make_list({make_dict({{"inputs", make_list({use})}})})),
                    Catch::Contains("calls[0]"));
  CHECK_THROWS_WITH(recording(make_list({make_dict({{"origin", 1}, {"producer", 5}})}), make_list({})),
                    Catch::Contains("producer"));
}

TEST_CASE("names are compared without namespace, overload and the mark of in-place forms", "[runs]") {
  CHECK(plain_name("aten::add_.Tensor") == "add");
  CHECK(plain_name("torch.Tensor.__matmul__") == "matmul");
  CHECK(plain_name("torch.nn.functional.relu") == "relu");
}

TEST_CASE("products of factors that CUDA rounds to TF32 may differ by that rounding, and no others", "[runs]") {
  const auto is_named = [](const std::string& op, double change, bool cudnn, bool matmul) {
    MadeRun a, b;
    for (auto* const run : {&a, &b}) {
      const uint32_t x = run->parameter("x", 1), weight = run->parameter("weight", 2);
      run->call(op, {x, weight}, run == &a ? 10 : 10 + change);
    }
    b.move_to_cuda(cudnn, matmul);
    return compared(a.run(), b.run()).first != kNoRow;
  };
  constexpr double kByTf32 = 0.01, kWrong = 0.9;  // of one element in 16
  CHECK_FALSE(is_named("aten::convolution", kByTf32, true, false));
  CHECK(is_named("aten::convolution", kByTf32, false, true));
  CHECK(is_named("aten::convolution", kWrong, true, false));
  CHECK_FALSE(is_named("torch.gru", kByTf32, true, false));
  CHECK_FALSE(is_named("aten::mm", kByTf32, false, true));
  CHECK(is_named("aten::mm", kByTf32, true, false));
  CHECK(is_named("aten::add.Tensor", kByTf32, true, true));
  CHECK_FALSE(is_named("module:Conv2d", kByTf32, true, false));
  CHECK(is_named("module:Linear", kByTf32, true, false));
}
