// OpTimeMeasure from C++: counts, sums, limits and files; that quantiles keep to their promise; that failures stay
// ours.
#include "timing/time_hook.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "catch.h"
#include "quiet_log.h"
#include "recording_hook.h"
#include "scoped_variable.h"
#include "temporary_folder.h"
#include "timing/call_timer.h"
#include "timing/durations.h"
#include "timing/stopwatch.h"
#include "timing/tsc_clock.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::ScopedVariable;
using op_tools::test::TemporaryFolder;

namespace {

TimeOptions measure_into(const TemporaryFolder& folder, const char* ops) {
  TimeOptions options;
  options.ops = ops;
  options.output_dir = folder.path();
  return options;
}

const TimeRow& row_of(const std::vector<TimeRow>& rows, const std::string& op) {
  const auto place = std::find_if(rows.begin(), rows.end(), [&](const TimeRow& row) { return row.op == op; });
  if (place == rows.end()) throw std::runtime_error("no row of " + op);
  return *place;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("Quantiles of durations are off by less than 0.8 percent, the rest is exact", "[time]") {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> spread(10, 3);
  Durations first, second;
  std::vector<int64_t> all;
  for (int i = 0; i < 20'000; ++i) {
    all.push_back(static_cast<int64_t>(spread(random)));
    (i % 3 ? first : second).add(all.back());
  }
  first.add(second);
  std::sort(all.begin(), all.end());
  int64_t total = 0;
  for (const int64_t part : all) total += part;
  CHECK(first.count() == all.size());
  CHECK(first.total() == total);
  CHECK(first.least() == all.front());
  CHECK(first.most() == all.back());
  for (const double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(q * static_cast<double>(all.size()))));
    const auto exact = static_cast<double>(all[rank - 1]);
    INFO("quantile " << q);
    CHECK(std::abs(static_cast<double>(first.quantile(q)) - exact) <= 0.008 * exact);
  }
  CHECK(Durations().quantile(0.5) == 0);
  CHECK(Durations().mean() == 0);
}

TEST_CASE("The clock's distance to the time since 1970 is the system's", "[time]") {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t expected = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  CHECK(std::abs(clock_now() + clock_to_unix() - expected) < int64_t{1'000'000'000});
}

TEST_CASE("The held clock agrees with the system's clock", "[time]") {
  TscClock clock;
  constexpr int64_t kLasts = 60'000'000, kOff = 5'000;  // nanoseconds
  const int64_t begin = clock_now();
  int64_t readings = 0, wrong = 0;
  for (int64_t after = begin; after - begin < kLasts; ++readings) {
    const int64_t before = clock_now();
    const int64_t now = clock.now();
    after = clock_now();
    wrong += now < before - kOff || now > after + kOff;
  }
  CHECK(wrong == 0);
  CHECK(readings > 0);
}

TEST_CASE("A counter is used when its rate is known, and no more when it ran otherwise", "[time]") {
  using Reading = TscClock::Reading;
  constexpr uint64_t kTicks = 2;  // of a nanosecond
  constexpr int64_t kMillisecond = 1'000'000;
  const auto at = [](int64_t time, uint64_t off = 0) {
    return Reading{1'000 + kTicks * static_cast<uint64_t>(time) + off, time};
  };
  TscClock clock;
  clock.hold(at(0));
  CHECK(!clock.holds_at(at(1).ticks));
  clock.hold(at(9 * kMillisecond));
  CHECK(!clock.holds_at(at(9 * kMillisecond + 1).ticks));
  clock.hold(at(10 * kMillisecond));
  REQUIRE(clock.holds_at(at(10 * kMillisecond + 700).ticks));
  CHECK(std::abs(clock.time_at(at(10 * kMillisecond + 700).ticks) - (10 * kMillisecond + 700)) <= 1);
  CHECK(!clock.holds_at(at(12 * kMillisecond).ticks));
  CHECK(!clock.holds_at(at(9 * kMillisecond).ticks));  // from before

  clock.hold(at(11 * kMillisecond, 500));  // read a little apart
  CHECK(clock.holds_at(at(11 * kMillisecond + 700, 500).ticks));
  SECTION("It went on while the system's clock stood still") {
    clock.hold(at(12 * kMillisecond, kTicks * 60 * kMillisecond));
  }
  SECTION("It began anew") {
    clock.hold({5, 12 * kMillisecond});
  }
  SECTION("It stopped") {
    clock.hold({at(11 * kMillisecond, 500).ticks, 12 * kMillisecond});
  }
  CHECK(!clock.is_trusted());
  CHECK(!clock.holds_at(at(12 * kMillisecond).ticks));
  for (int64_t time = 12; time < 40; ++time) clock.hold(at(time * kMillisecond));
  CHECK(!clock.holds_at(at(39 * kMillisecond + 1).ticks));
}

TEST_CASE("Records add up the calls of threads while others read and threads end", "[time]") {
  constexpr int kThreads = 4, kRounds = 3, kCalls = 1'000;  // many times the queue of a thread
  TimeRecords records(size_t{kThreads} * kRounds * kCalls, {});
  std::atomic<bool> done{false}, lost{false};
  std::thread reader([&] {
    uint64_t last = 0;
    while (!done.load()) {
      const uint64_t now = records.snapshot().calls;
      lost = lost || now < last;
      last = now;
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&records, t, round] {
        for (int i = 0; i < kCalls; ++i) {
          TimedCall call;
          call.entry = records.entry_of("aten::mm", Phase::kForward, static_cast<uint64_t>(i % 5), 0,
                                        [] { return CallDetails{}; });
          call.thread = static_cast<uint32_t>(round * kThreads + t);
          call.id = static_cast<uint64_t>(i);
          call.nanoseconds = call.self = 3;
          records.add(call, {1, 2, 0, 0});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  done = true;
  reader.join();
  CHECK(!lost);

  const TimeRecords::Snapshot all = records.snapshot();
  constexpr uint64_t kAll = uint64_t{kThreads} * kRounds * kCalls;
  CHECK(all.calls == kAll);
  REQUIRE(all.entries.size() == 5);
  for (const TimeEntry& entry : all.entries) {
    CHECK(entry.times.count() == kAll / 5);
    CHECK(entry.times.total() == static_cast<int64_t>(kAll / 5 * 3));
    CHECK(entry.bytes.written == static_cast<int64_t>(kAll / 5 * 2));
  }
  std::vector<uint64_t> next(size_t{kThreads} * kRounds, 0);
  bool in_order = true;
  for (const TimedCall& call : records.calls(0)) in_order = in_order && call.id == next[call.thread]++;
  CHECK(in_order);
  CHECK(std::all_of(next.begin(), next.end(), [](uint64_t calls) { return calls == kCalls; }));
}

TEST_CASE("A thread that measures for two tools keeps them apart", "[time]") {
  TimeRecords first(100, {}), second(100, {});
  const auto add = [](TimeRecords& records) {
    TimedCall call;
    call.entry = records.entry_of("aten::mm", Phase::kForward, 7, 0, [] { return CallDetails{}; });
    records.add(call, {});
  };
  for (int i = 0; i < 10; ++i) {
    add(first);
    if (i % 2) add(second);
  }
  CHECK(first.snapshot().calls == 10);
  CHECK(second.snapshot().calls == 5);
}

TEST_CASE("Devices of a call are those that must be waited for, each once", "[time]") {
  CallDevices devices;
  devices.add(c10::kCPU);
  devices.add(c10::Device(c10::kMeta));
  CHECK(devices.empty());
  devices.add(c10::Device(c10::kCUDA, 1));
  devices.add(c10::Device(c10::kCUDA, 1));
  CHECK(std::distance(devices.begin(), devices.end()) == 1);
}

TEST_CASE("A scope counts calls by operator and shape, and reports bytes", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const at::Tensor small = at::ones({4, 4}), large = at::ones({8, 8});
  OpTimeMeasure scope(measure_into(folder, "mm, relu"));
  for (int i = 0; i < 3; ++i) at::mm(small, small);
  at::mm(large, large);
  at::relu(large);
  at::add(small, small);

  const TimeResult result = scope.result();
  CHECK(result.calls == 5);
  REQUIRE(result.by_op.size() == 2);
  const TimeRow& mm = row_of(result.by_op, "aten::mm");
  CHECK(mm.calls == 4);
  CHECK(mm.phase == "forward");
  CHECK(mm.device == "cpu");
  CHECK(mm.dtypes == "float32");
  CHECK(mm.shapes.empty());  // it has several
  CHECK(mm.bytes_read == 3 * 2 * 64 + 2 * 256);
  CHECK(mm.bytes_written == 3 * 64 + 256);
  CHECK(mm.total_ms > 0);
  CHECK(mm.self_ms == Approx(mm.total_ms));
  CHECK(mm.min_ms <= mm.p50_ms);
  CHECK(mm.p50_ms <= mm.p99_ms);
  CHECK(mm.p99_ms <= mm.max_ms);
  CHECK(result.by_shape.size() == 3);
  double share = 0;
  for (const TimeRow& row : result.by_op) share += row.share;
  CHECK(share == Approx(1));
  const std::string table = time_table(result.by_op, 1);
  CHECK(table.find("1 more row") != std::string::npos);
}

TEST_CASE("Every mode counts the same calls on the CPU", "[time]") {
  const QuietLog quiet;
  for (const char* mode : {"sync", "event", "host"}) {
    const TemporaryFolder folder;
    TimeOptions options = measure_into(folder, "mm");
    options.mode = mode;
    OpTimeMeasure scope(options);
    const at::Tensor x = at::ones({4, 4});
    for (int i = 0; i < 5'000; ++i) at::mm(x, x);  // more than may wait for their events
    INFO(mode);
    CHECK(scope.result().calls == 5'000);
    CHECK(row_of(scope.result().by_op, "aten::mm").total_ms > 0);
  }
}

TEST_CASE("A call that raises is counted and its exception passes", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  OpTimeMeasure scope(measure_into(folder, "mm"));
  CHECK_THROWS_AS(at::mm(at::ones({2, 3}), at::ones({2, 3})), c10::Error);
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  const TimeResult result = scope.result();
  CHECK(result.calls == 2);
  CHECK(row_of(result.by_op, "aten::mm").failed == 1);
}

TEST_CASE("The files agree with the records", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  std::string root;
  {
    OpTimeMeasure scope(measure_into(folder, "mm, relu"));
    const at::Tensor x = at::ones({4, 4});
    at::mm(x, x);
    scope.step();
    at::relu(x);
    at::mm(x, x);
    scope.hook().flush();
    root = scope.result().root;
  }
  const std::vector<std::string> calls = lines_of(root + "/calls.csv");
  REQUIRE(calls.size() == 4);
  CHECK(calls[0].find("id,step,op,phase,pass,start_us,ms,self_ms,host_ms,device,shapes") == 0);
  CHECK(calls[1].find(",0,aten::mm,forward,0,") != std::string::npos);
  CHECK(calls[2].find(",1,aten::relu,forward,0,") != std::string::npos);
  CHECK(calls[3].find("\"[[4, 4], [4, 4]]\"") != std::string::npos);
  CHECK(lines_of(root + "/summary.csv").size() == 3);

  std::ifstream file(root + "/trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::vector<std::string> bars;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") bars.push_back(event.at("name"));
  }
  CHECK(bars == std::vector<std::string>{"aten::mm", "aten::relu", "aten::mm", "step 0", "step 1"});
  const int64_t base = trace.at("baseTimeNanoseconds");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  CHECK(std::abs(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - base) <
        int64_t{600} * 1'000'000'000);
}

TEST_CASE("Calls beyond max_calls are counted and go to the CSV, in order", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  TimeOptions options = measure_into(folder, "mm");
  options.max_calls = 10;
  std::string root;
  {
    OpTimeMeasure scope(options);
    const at::Tensor x = at::ones({2, 2});
    for (int i = 0; i < 9'000; ++i) at::mm(x, x);
    scope.hook().flush();
    const TimeResult result = scope.result();
    root = result.root;
    CHECK(result.calls == 9'000);
    CHECK(result.overflowed == 8'990);
    CHECK(row_of(result.by_op, "aten::mm").calls == 9'000);
  }
  const std::vector<std::string> calls = lines_of(root + "/calls.csv");
  REQUIRE(calls.size() == 9'001);
  int64_t last = -1;
  bool rising = true;
  for (size_t i = 1; i < calls.size(); ++i) {
    const int64_t id = std::stoll(calls[i]);
    rising = rising && id > last;
    last = id;
  }
  CHECK(rising);
  std::ifstream file(root + "/trace.json");
  CHECK(nlohmann::json::parse(file).at("op_tools").at("not_in_trace") == 8'990);
}

TEST_CASE("Shapes that never repeat end in a row per operator", "[time]") {
  const auto described = [] { return CallDetails{}; };
  TimeRecords records(0, {});
  for (uint64_t i = 0; i < 2 * TimeRecords::kMostEntries; ++i) {
    TimedCall call;
    call.entry = records.entry_of("aten::mm", Phase::kForward, i + 1, 0, described);
    call.nanoseconds = call.self = 1;
    records.add(call, {});
  }
  const TimeRecords::Snapshot snapshot = records.snapshot();
  CHECK(snapshot.entries.size() == TimeRecords::kMostEntries + 1);
  CHECK(snapshot.calls == 2 * TimeRecords::kMostEntries);
  CHECK(snapshot.entries.back().details.shapes == "(other shapes)");
  CHECK(snapshot.entries.back().times.count() == TimeRecords::kMostEntries);
}

TEST_CASE("Reports of allocators are seen for the call, and living memory is counted", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  TimeOptions options = measure_into(folder, "add.Tensor, mm");
  options.memory = true;
  OpTimeMeasure scope(options);
  const at::Tensor x = at::ones({1000});
  const at::Tensor kept = at::add(x, x);
  for (int i = 0; i < 3; ++i) at::add(x, x);
  const TimeResult result = scope.result();
  const TimeRow& row = row_of(result.by_op, "aten::add.Tensor");
  CHECK(row.allocated_bytes >= 4 * 4'000);
  CHECK(row.peak_bytes >= 4'000);
  REQUIRE(result.alive.size() == 1);
  CHECK(result.alive[0].where == "aten::add.Tensor");
  CHECK(result.alive[0].count == 1);
  CHECK(result.alive[0].bytes == 4'000);
}

TEST_CASE("Innermost hooks stand between the others and the operator", "[time][chain]") {
  struct Ordered final : Hook {
    Ordered(std::vector<std::string>& log, std::string id, bool innermost)
        : log(log), id(std::move(id)), innermost(innermost) {}
    std::string_view name() const override { return "Ordered"; }
    bool is_innermost() const override { return innermost; }
    std::unique_ptr<HookState> before(OpCall&) override {
      log.push_back("before " + id);
      return nullptr;
    }
    void after(OpCall&, HookState*) override { log.push_back("after " + id); }
    std::vector<std::string>& log;
    const std::string id;
    const bool innermost;
  };
  std::vector<std::string> log;
  HookOptions options;
  options.ops = "mm";
  const ResolvedOptions resolved = resolve(options).scope;
  HookScope clock(std::make_shared<Ordered>(log, "clock", true), resolved);
  HookScope observer(std::make_shared<Ordered>(log, "observer", false), resolved);
  clock.enter();
  observer.enter();
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  observer.leave();
  clock.leave();
  CHECK(log == std::vector<std::string>{"before observer", "before clock", "after clock", "after observer"});
}

TEST_CASE("Threads of their own measure side by side into the same tool", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  TimeOptions options = measure_into(folder, "mm");
  options.all_threads = true;
  OpTimeMeasure scope(options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      const at::Tensor x = at::ones({2, 2});  // the first operator of a thread is not met
      for (int j = 0; j < 500; ++j) at::mm(x, x);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(scope.result().calls == 2'000);
}

TEST_CASE("A wrong mode or limit is an error that names it", "[time][options]") {
  TimeOptions options;
  CHECK_THROWS_WITH(options.mode = "fast", Catch::Contains("mode=") && Catch::Contains("fast"));
  {
    const ScopedVariable mode("OP_TIME_MEASURE_MODE", "quick");
    CHECK_THROWS_WITH(resolve(options), Catch::Contains("OP_TIME_MEASURE_MODE"));
  }
  options.max_calls = -1;
  CHECK_THROWS_WITH(resolve(options), Catch::Contains("max_calls="));
}

TEST_CASE("A folder that cannot be written is said, and the program goes on", "[time]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const std::string file = folder / "a_file";
  std::ofstream(file) << "x";
  TimeOptions options;
  options.ops = "mm";
  options.output_dir = file;
  const auto resolved = resolve(options);
  auto hook = std::make_shared<TimeHook>(resolved);
  HookScope scope(hook, resolved.scope);
  scope.enter();
  CHECK(at::mm(at::ones({2, 2}), at::ones({2, 2})).sum().item<float>() == 8);
  scope.leave();
  CHECK(scope.hook_failures() == 1);
  CHECK(hook->result().calls == 1);
}
