// The file of OpBlackBox, and the tool's entries in it.
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/host.h"
#include "blackbox/blackbox_content.h"
#include "blackbox/blackbox_file.h"
#include "blackbox/blackbox_hook.h"
#include "blackbox/stack_dump.h"
#include "blackbox/stall_watch.h"
#include "catch.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test

namespace {

void begin(BlackBoxFile& file, BlackBoxFile::Thread& thread, uint64_t id) {
  BlackBoxCall& call = file.next(thread);
  call.id = id;
  file.begin(thread, call);
}

struct Found {
  std::vector<uint64_t> ended, open;
};

Found calls_in(const BlackBoxFile& file) {
  Found calls;
  file.each_call([&](const BlackBoxFile::Region&, const BlackBoxCall& call, bool is_open) {
    (is_open ? calls.open : calls.ended).push_back(call.id);
  });
  return calls;
}

}  // namespace

TEST_CASE("a file is read without Python, whatever was written over it", "[blackbox]") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/a.blackbox";
  {
    BlackBoxFile file(path, {16}, 3);
    BlackBoxFile::Thread& thread = file.thread();
    for (uint64_t id = 1; id <= 2; ++id) {
      BlackBoxCall& call = file.next(thread);
      call.id = id;
      call.op = file.intern(id == 1 ? "aten::mm" : "aten::relu");
      call.inputs = file.describe(id, [] { return std::string("float32[4]"); });
      file.begin(thread, call);
      if (id == 1) file.end(thread, id, /*failed=*/true);
    }
  }
  const BlackBoxContent content = read_black_box(path);
  CHECK(content.pid == ::getpid());
  CHECK(content.rank == 3);
  CHECK_FALSE(content.closed);
  CHECK_FALSE(content.copied);
  REQUIRE(content.rows.size() == 2);
  CHECK(content.rows[0].op == "aten::mm");
  CHECK(content.rows[0].state == "failed");
  CHECK(content.rows[0].inputs == "float32[4]");
  CHECK(content.rows[0].ms.has_value());
  CHECK(content.rows[1].op == "aten::relu");
  CHECK(content.rows[1].state == "open");
  CHECK_FALSE(content.rows[1].ms.has_value());
  CHECK_THROWS_WITH(save_kept_calls(path, folder.path()), Catch::Contains("has no inputs of calls"));
  CHECK_THROWS_WITH(read_black_box(folder.path() + "/none"), Catch::Contains("/none: cannot be read"));

  std::ifstream opened(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(opened), {}};
  std::mt19937 random(5);
  size_t refused = 0;
  for (int attempt = 0; attempt < 60; ++attempt) {
    std::string broken = bytes.substr(0, attempt % 3 == 0 ? random() % bytes.size() : bytes.size());
    for (int change = 0; change < 4 && broken.size() > 8192; ++change) {
      broken[8 + random() % 8184] = static_cast<char>(random());
    }
    try {
      read_black_box(broken, "broken.blackbox");
    } catch (const Error& error) {
      ++refused;
      CHECK_THAT(error.what(), Catch::StartsWith("broken.blackbox: "));
    }
  }
  CHECK(refused >= 20);
}

namespace {

// A call for each number; the last stays open.
void make_calls(BlackBoxFile& file, uint64_t first, uint64_t last) {
  BlackBoxFile::Thread& thread = file.thread();
  for (uint64_t id = first; id <= last; ++id) {
    BlackBoxCall& call = file.next(thread);
    call.id = id;
    call.op = file.intern("aten::op_" + std::to_string(id % 40));
    call.module = file.intern("model.layers." + std::to_string(id) + ".a_module_with_a_long_name");
    call.inputs = file.describe(id, [&] { return "float32[" + std::to_string(id) + "]"; });
    file.begin(thread, call);
    if (id != last) file.end(thread, id, /*failed=*/false);
  }
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Nothing: the file is refused.
std::optional<BlackBoxContent> content_of(const std::string& bytes) {
  try {
    return read_black_box(bytes, "lost_page.blackbox");
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool shows_the_same(const BlackBoxContent& content, const BlackBoxContent& other) {
  const auto row_text = [](const BlackBoxRow& row) {
    return row.state + row.op + row.module + row.inputs + std::to_string(row.id) + std::to_string(row.thread);
  };
  return std::equal(content.rows.begin(), content.rows.end(), other.rows.begin(), other.rows.end(),
                    [&](const BlackBoxRow& row, const BlackBoxRow& same) { return row_text(row) == row_text(same); });
}

}  // namespace

TEST_CASE("a page that was lost, or that an older one stands for, is not read as calls", "[blackbox]") {
  const int64_t ring = GENERATE(256, 1024);
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/a.blackbox";
  std::string older, newer;
  {
    BlackBoxFile file(path, {ring}, 0);
    std::thread([&] { make_calls(file, 1001, 1300); }).join();
    make_calls(file, 1, 400);
    older = bytes_of(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // more than a clock's step
    make_calls(file, 401, 800);
    newer = bytes_of(path);
  }
  const BlackBoxContent whole = *content_of(newer);
  CHECK(whole.damaged == 0);
  CHECK(content_of(older)->damaged == 0);
  REQUIRE(whole.rows.size() >= 500);
  older.resize(newer.size());
  size_t lost_pages = 0;
  for (const bool is_zero : {true, false}) {
    for (size_t at = 0; at < newer.size(); at += BlackBoxFile::kPage) {
      std::string broken = newer;
      broken.replace(at, BlackBoxFile::kPage,
                     is_zero ? std::string(BlackBoxFile::kPage, '\0') : older.substr(at, BlackBoxFile::kPage));
      const std::optional<BlackBoxContent> content = content_of(broken);
      const bool is_known = !content || content->damaged > 0;
      const bool is_harmless = content && shows_the_same(*content, whole);
      CAPTURE(is_zero, at / BlackBoxFile::kPage);
      CHECK((is_known || is_harmless));
      lost_pages += is_known ? 1 : 0;
    }
  }
  CHECK(lost_pages >= 20);
}

TEST_CASE("the ring has the last calls, and the open ones beside it", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0);
  BlackBoxFile::Thread& thread = file.thread();
  begin(file, thread, 1);
  for (uint64_t id = 2; id < 42; ++id) {
    begin(file, thread, id);
    file.end(thread, id, /*failed=*/false);
  }
  const Found calls = calls_in(file);
  CHECK(calls.open == std::vector<uint64_t>{1});  // 40 calls ended since: it is not lost
  REQUIRE(calls.ended.size() == 16);
  CHECK(calls.ended.front() == 26);
  CHECK(calls.ended.back() == 41);
}

TEST_CASE("a thread's clock learns its rate once, not for each file", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile first(folder.path() + "/one.blackbox", {16}, 0), other(folder.path() + "/other.blackbox", {16}, 0);
  REQUIRE(&first.thread().clock == &other.thread().clock);
  const TscClock* of_another = nullptr;
  std::thread([&] { of_another = &first.thread().clock; }).join();
  REQUIRE(of_another != &first.thread().clock);
}

TEST_CASE("a call that never ended goes with the call around it, and deep nesting is counted", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0);
  BlackBoxFile::Thread& thread = file.thread();
  begin(file, thread, 1);
  begin(file, thread, 2);  // an exception that no hook saw
  file.end(thread, 1, /*failed=*/true);
  CHECK(calls_in(file).open.empty());
  CHECK(calls_in(file).ended == std::vector<uint64_t>{1});
  for (uint64_t id = 10; id < 50; ++id) begin(file, thread, id);
  CHECK(calls_in(file).open.size() == BlackBoxFile::kMostNested);
  CHECK(file.header().left_out.load() == 40 - BlackBoxFile::kMostNested);
  for (uint64_t id = 49; id >= 10; --id) file.end(thread, id, false);
  CHECK(calls_in(file).open.empty());
}

TEST_CASE("each thread has a region, and takes that of a thread which has ended", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0);
  for (uint64_t id = 1; id <= BlackBoxFile::kThreads + 20; ++id) {
    std::thread([&] {
      BlackBoxFile::Thread& thread = file.thread();
      begin(file, thread, id);
      file.end(thread, id, false);
    }).join();
  }
  CHECK(file.header().left_out.load() == 0);
  const Found calls = calls_in(file);
  CHECK(calls.ended.size() == BlackBoxFile::kThreads);
  CHECK(std::count(calls.ended.begin(), calls.ended.end(), BlackBoxFile::kThreads + 20) == 1);
}

TEST_CASE("strings are in the file once", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0);
  const StringId first = file.intern("aten::mm");
  CHECK(first != 0);
  CHECK(file.intern("aten::mm") == first);
  CHECK(file.text(first) == "aten::mm");
  CHECK(file.intern("") == 0);
  const auto large = [](uint32_t i) { return std::string(BlackBoxFile::kSegment, static_cast<char>(i)); };
  for (uint32_t i = 1; i < BlackBoxFile::kStringSegments; ++i) {
    CHECK(file.text(file.intern(large(i))) == large(i).substr(0, BlackBoxFile::kLongestText));
  }
  CHECK(file.header().names_lost.load() == 0);
  CHECK(file.intern("aten::add") == 0);  // no room: a call has an empty name then
  CHECK(file.header().names_lost.load() == 1);
  CHECK(file.text(first) == "aten::mm");
  CHECK_THROWS_AS(BlackBoxFile(folder.path() + "/a.blackbox", {16}, 0), Error);  // it exists
  CHECK_THROWS_AS(BlackBoxFile(folder.path() + "/no/a.blackbox", {16}, 0), Error);
}

TEST_CASE("descriptions go round, and names stay", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0);
  const auto text_of = [](uint64_t i) { return "float32[" + std::to_string(i) + "]" + std::string(1000, ' '); };
  const InputsId first = file.describe(1, [&] { return text_of(1); });
  CHECK(file.describe(1, [&] { return text_of(2); }) == first);  // it is there
  CHECK(file.description(first) == text_of(1));
  for (uint64_t i = 2; i < 20000; ++i) {
    const InputsId id = file.describe(i, [&] { return text_of(i); });
    REQUIRE(file.is_fresh(id));
    REQUIRE(file.description(id) == text_of(i));
  }
  CHECK(file.description(first).empty());
  CHECK(!file.is_fresh(first));
  const InputsId again = file.describe(1, [&] { return text_of(1); });
  CHECK(again != first);
  CHECK(file.description(again) == text_of(1));
  CHECK(file.description(file.describe(0, [] { return std::string(1 << 20, 'x'); })).size() ==
        BlackBoxFile::kLongestText);
  CHECK(file.text(file.intern("aten::mm")) == "aten::mm");
  CHECK(file.description(0).empty());
}

TEST_CASE("the tool writes calls with shapes, and marks those that raised", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxOptions options;
  options.output_dir = folder.path();
  BlackBoxResult result;
  {
    OpBlackBox box(options);
    const auto a = at::ones({2, 3});
    at::add(a, a);
    CHECK_THROWS(at::mm(a, a));
    result = box.result();
  }
  std::vector<std::string> seen;
  for (const BlackBoxRow& row : result.rows) seen.push_back(row.state + " " + row.op + " " + row.inputs);
  CHECK(std::count(seen.begin(), seen.end(), "ended aten::add.Tensor float32[2, 3], float32[2, 3]") == 1);
  CHECK(std::count(seen.begin(), seen.end(), "failed aten::mm float32[2, 3], float32[2, 3]") == 1);
  std::ifstream file(result.path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  CHECK(bytes.compare(0, 8, "OPTBLBX4") == 0);
  CHECK(bytes.find("aten::mm") != std::string::npos);
}

TEST_CASE("a call without end is found stuck", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0);
  BlackBoxFile::Thread& thread = file.thread();
  const uint64_t before = file.progress();
  CHECK_FALSE(file.stuck(INT64_MAX));
  begin(file, thread, 1);
  CHECK(file.progress() == before + 1);
  REQUIRE(file.stuck(INT64_MAX));
  CHECK(file.stuck(INT64_MAX)->thread == thread.region->thread);
  CHECK_FALSE(file.stuck(0));
  file.end(thread, 1, false);
  CHECK(file.progress() == before + 2);
  REQUIRE(file.stuck(INT64_MAX));
  CHECK(file.stuck(INT64_MAX)->in == BlackBoxFile::Stuck::In::kProgram);
  CHECK_FALSE(file.stuck(0));
}

TEST_CASE("a forked process that is in no operator waits for work", "[blackbox]") {
  const test::TemporaryFolder folder;
  BlackBoxFile file(folder.path() + "/a.blackbox", {16}, 0, /*parent=*/1);
  BlackBoxFile::Thread& thread = file.thread();
  begin(file, thread, 1);
  CHECK(file.stuck(INT64_MAX));
  file.end(thread, 1, false);
  CHECK_FALSE(file.stuck(INT64_MAX));
}

TEST_CASE("a stall is looked for until its watch ends", "[blackbox]") {
  std::atomic<int> asked{0};
  {
    const StallWatch watch(std::chrono::milliseconds(1), [&] { asked.fetch_add(1); });
    while (asked.load() < 3) std::this_thread::yield();
  }
  const int last = asked.load();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(asked.load() == last);
}

TEST_CASE("a dump of the stacks that fails does not end the program", "[blackbox]") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() + "/stacks";
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND, 0600);
  REQUIRE(::write(descriptor, "before\n", 7) == 7);
  const auto written = [&] {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  CHECK(write_stacks(descriptor));  // no dump is set
  struct Dumps final : Host {
    StackDump stack_dump() override { return dump; }
    StackDump dump = nullptr;
  } dumps;
  Host* const host_before = install_host(&dumps);
  dumps.dump = [](int out) {
    if (::write(out, "half", 4) == 4) ::raise(SIGSEGV);
  };
  CHECK_FALSE(write_stacks(descriptor));
  CHECK(written() == "before\n");
  void* shared = ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  static int* attempts = nullptr;  // of all children together
  attempts = static_cast<int*>(shared);
  dumps.dump = [](int out) {
    if (++*attempts < 3) ::raise(SIGBUS);
    if (::write(out, "stacks\n", 7) != 7) ::_exit(1);
  };
  CHECK(write_stacks(descriptor));
  CHECK(written() == "before\nstacks\n");
  CHECK(*attempts == 3);
  install_host(host_before);
  ::munmap(shared, sizeof(int));
  ::close(descriptor);
}

TEST_CASE("seconds of a stall that are no number are refused", "[blackbox]") {
  BlackBoxOptions options;
  options.stall = -1.0;
  CHECK_THROWS_WITH(resolve(options), Catch::Contains("stall="));
}
