// The account of a run: which gaps turn a verdict, their sentences, and the accounts of scopes.
#include "coverage/coverage.h"

#include <ATen/ops/ones.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "compare/compare_hook.h"
#include "coverage/coverage_file.h"
#include "coverage/coverage_text.h"
#include "quiet_log.h"
#include "record/record_hook.h"
#include "record/recording_file.h"
#include "recording_hook.h"
#include "report/json_writer.h"
#include "temporary_folder.h"
#include "timing/time_hook.h"

namespace op_tools::test {
namespace {

Coverage of_a_device_run() {
  Coverage account;
  account.seen = account.judged = 10;
  account.accelerator = "sim";
  account.on_device = true;
  return account;
}

std::vector<std::string> gap_names(const Coverage& account) {
  std::vector<std::string> names;
  for (const Gap gap : gaps(account)) names.emplace_back(token_of(gap).name);
  return names;
}

std::string name_of(Gap gap) {
  return std::string(token_of(gap).name);
}

using Names = std::vector<std::string>;

struct GapCase {
  Gap gap;
  std::function<void(Coverage&)> make;
};

const std::vector<GapCase>& gap_cases() {
  static const std::vector<GapCase> all{
      {Gap::kToolOff, [](Coverage& account) { account.off = true; }},
      {Gap::kNothingSeen, [](Coverage& account) { account.seen = 0; }},
      {Gap::kMostUnjudged, [](Coverage& account) { account.not_judged[Unjudged::kNoFloat64] = 11; }},
      {Gap::kMostLost, [](Coverage& account) { account.lost[Loss::kNoRoom] = 11; }},
      {Gap::kMostLost, [](Coverage& account) { account.judged = 0, account.lost[Loss::kNotWritten] = 6; }},
      {Gap::kNotOnAccelerator, [](Coverage& account) { account.on_device = false; }},
      {Gap::kNotOnAccelerator, [](Coverage& account) { account.devices["cpu"] = 10; }},
      {Gap::kThreads, [](Coverage& account) { account.threads = account.thread_calls_on_device = 1; }},
      {Gap::kThreads, [](Coverage& account) { account.threads = 1, account.thread_calls = 11; }},
      {Gap::kNativeCalls, [](Coverage& account) { account.native_calls = account.native_calls_on_device = 1; }},
      {Gap::kNativeCalls, [](Coverage& account) { account.native_calls = 11; }},
      {Gap::kProcesses, [](Coverage& account) { account.processes = 1; }},
      {Gap::kChildren, [](Coverage& account) { account.children = account.children_with_gaps = 1; }},
      {Gap::kGraphs, [](Coverage& account) { account.compiled = 1; }},
      {Gap::kWideLimits, [](Coverage& account) { account.wide_limits = 6; }},
  };
  return all;
}

TEST_CASE("each gap turns a verdict, and is named", "[coverage]") {
  std::set<Gap> tried;
  for (const GapCase& gap_case : gap_cases()) {
    Coverage account = of_a_device_run();
    gap_case.make(account);
    CAPTURE(name_of(gap_case.gap));
    CHECK(gap_names(account) == Names{name_of(gap_case.gap)});
    CHECK(verdict_of(false, account) == Verdict::kNotJudged);
    CHECK(verdict_of(true, account) == Verdict::kDiffers);
    CHECK(reasons(account).size() == 1);
    std::string text;
    for (const std::string& line : lines(account)) text += line + "\n";
    CHECK(text.find("NOT JUDGED: " + reasons(account)[0].substr(0, 10)) != std::string::npos);
    tried.insert(gap_case.gap);
  }
  CHECK(tried.size() == static_cast<size_t>(Gap::kCount));
}

TEST_CASE("unseen work that cannot matter turns no verdict", "[coverage]") {
  const std::vector<std::function<void(Coverage&)>> harmless{
      [](Coverage& account) { account.loaders = account.children = 4; },
      [](Coverage& account) { account.threads = 1, account.thread_calls = 9; },  // on the host
      [](Coverage& account) { account.native_calls = 9; },
      [](Coverage& account) {
        account.devices = {{"sim", 1}, {"cpu", 90}};
      },
      [](Coverage& account) { account.not_judged[Unjudged::kRandom] = 9; },
      [](Coverage& account) { account.lost[Loss::kLimits] = 9; },
      [](Coverage& account) { account.accelerator.clear(), account.on_device = false; },
  };
  for (const auto& make : harmless) {
    Coverage account = of_a_device_run();
    make(account);
    CHECK(gap_names(account).empty());
    CHECK(verdict_of(false, account) == Verdict::kAgrees);
    CHECK(lines(account).back().find("NOT JUDGED") == std::string::npos);
  }
  CHECK(lines_of_unseen(of_a_device_run()).empty());
}

TEST_CASE("verdicts have exit statuses, and the worst of several counts", "[coverage]") {
  CHECK(exit_status(Verdict::kAgrees, false) == 0);
  CHECK(exit_status(Verdict::kDiffers, false) == 1);
  CHECK(exit_status(Verdict::kNotJudged, false) == 2);
  CHECK(exit_status(Verdict::kNotJudged, true) == 0);
  CHECK(exit_status(Verdict::kDiffers, true) == 1);
  using enum Verdict;
  CHECK(worst({}) == kAgrees);
  CHECK(worst({kAgrees, kNotJudged}) == kNotJudged);
  CHECK(worst({kNotJudged, kDiffers, kAgrees}) == kDiffers);
}

TEST_CASE("lines about an account have at most 80 columns", "[coverage]") {
  Coverage account = of_a_device_run();
  for (const GapCase& gap_case : gap_cases()) gap_case.make(account);
  account.seen = 123'456'789;
  account.thread_calls = 987'654'321'000;
  account.loaders = 1'000'000;
  account.devices = {{"cpu", 123'456'789}, {"meta", 123'456'789}};
  for (size_t i = 0; i < static_cast<size_t>(Unjudged::kCount); ++i) {
    account.not_judged[static_cast<Unjudged>(i)] = 1'000'000'000 + i;
  }
  const std::vector<std::string> all = lines(account);
  CHECK(all.size() > 4);
  for (const std::string& line : all) CHECK(line.size() <= 80);
  CHECK(all[0].starts_with("Looked at: 123456789 calls seen, "));
}

TEST_CASE("an account goes through a dict, and other fields are refused", "[coverage]") {
  Coverage account = of_a_device_run(), read;
  account.not_judged[Unjudged::kNoForm] = 3;
  account.lost[Loss::kNoRoom] = 2;
  account.devices["sim"] = 5;
  set_fields(to_value(account), read);
  CHECK(read == account);
  CHECK_THROWS_AS(set_fields(make_dict({{"sen", 3}}), read), Error);
  CHECK_THROWS_AS(set_fields(make_dict({{"seen", -3}}), read), Error);
  CHECK_THROWS_AS(set_fields(make_dict({{"lost", make_dict({{"no_such_reason", 3}})}}), read), Error);
  CHECK(describe_coverage().columns.size() == std::get<Dict>(to_value(account).variant()).items->size());
}

TEST_CASE("a scope that sees no call has no all-clear", "[coverage]") {
  const QuietLog quiet;
  OpAutoCompare tool;
  CHECK(gap_names(tool.coverage()) == Names{name_of(Gap::kNothingSeen)});
  const at::Tensor x = at::ones({4, 4});
  x.matmul(x);
  const Coverage account = tool.coverage();
  CHECK(account.seen > 0);
  CHECK(account.judged > 0);
  CHECK(account.on_device == false);
  CHECK(account.devices.size() == 1);
  CHECK(verdict_of(false, account) == Verdict::kAgrees);
}

TEST_CASE("a tool that gives no verdict has an account, too", "[coverage]") {
  const QuietLog quiet;
  TimeOptions options;
  options.files = false;
  OpTimeMeasure tool{options};
  at::ones({4}).relu();
  tool.step();
  CHECK(tool.coverage().seen > 0);
  CHECK(tool.coverage().steps == 1);
  CHECK(lines_of_unseen(tool.coverage()).empty());
}

TEST_CASE("a tool that failed is off in its account", "[coverage]") {
  const QuietLog quiet;
  HookScope scope(std::make_shared<FailingHook>(/*in_before=*/true), admitting("relu"));
  scope.enter();
  at::ones({4}).relu();
  scope.leave();
  CHECK(scope.coverage().off);
  CHECK(verdict_of(false, scope.coverage()) == Verdict::kNotJudged);
}

TEST_CASE("work beside a scope is in its account", "[coverage]") {
  HookScope scope(std::make_shared<RecordingHook>(), admitting("relu"));
  scope.look_beside([](Coverage& account) { account.processes = 2; });
  scope.enter();
  at::ones({4}).relu();
  CHECK(gap_names(scope.coverage()) == Names{name_of(Gap::kProcesses)});
}

TEST_CASE("the account of a run is in its report, its folder and the header of its recording", "[coverage]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  CompareOptions compare_options;
  compare_options.output_dir = folder.path();
  RecordOptions record_options;
  record_options.output_dir = folder.path();
  std::string root, recording;
  uint64_t seen = 0;
  {
    OpAutoCompare compare{compare_options};
    OpRecord record{record_options};
    at::ones({4, 4}).relu();
    seen = compare.coverage().seen;
    const Value report = compare.report();
    CHECK(*find_key(*find_key(report, "coverage"), "seen")->get_if<int64_t>() > 0);
    root = compare.result().root;
    recording = record.result().path;
  }
  CHECK(seen > 0);
  std::ifstream file(root + "/coverage.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const Value told = value_of_json(text);
  CHECK(*find_key(told, "seen")->get_if<int64_t>() == static_cast<int64_t>(seen));
  CHECK(find_key(told, "gaps") != nullptr);
  CHECK(*find_key(told, "tool")->get_if<std::string>() == "OpAutoCompare");
  CHECK(*find_key(told, "ranks")->get_if<int64_t>() == 1);
  std::ifstream rows(root + "/autocompare.jsonl");
  const auto lines = std::count(std::istreambuf_iterator<char>(rows), {}, '\n');
  CHECK(lines > 1);
  CHECK(*find_key(*find_key(told, "rows"), "autocompare.jsonl")->get_if<int64_t>() == lines);
  const Recording read = read_recording(recording);
  const Value* account = find_key(read.header, kAccount);
  REQUIRE(account != nullptr);
  CHECK(*find_key(*account, "seen")->get_if<int64_t>() > 0);
}

TEST_CASE("An account is not written through a symbolic link", "[coverage]") {
  const TemporaryFolder folder;
  std::ofstream(folder / "of_others") << "theirs";
  const std::string path = folder / "coverage.json";
  std::filesystem::create_symlink("of_others", path + ".part");
  std::filesystem::create_symlink("of_others", path);
  write_coverage(folder.path(), Coverage{}, {});
  CHECK_FALSE(std::filesystem::is_symlink(path));
  CHECK_FALSE(std::filesystem::exists(path + ".part"));
  std::ifstream file(folder / "of_others");
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "theirs");
}

}  // namespace
}  // namespace op_tools::test
