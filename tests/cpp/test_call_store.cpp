#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "calls/call_store.h"
#include "catch.h"
#include "pth/zip.h"
#include "pth_testing.h"
#include "temporary_folder.h"

namespace op_tools {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::same_value;

Value call(int64_t id) {
  return make_dict(
      {{"name", "torch.Tensor.mul"}, {"args", make_tuple({at::full({3}, id)})}, {"kwargs", make_dict({})}});
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string exception_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

const auto kFormats = {CaptureFormat::kFolders, CaptureFormat::kContainer};

TEST_CASE("Files of a store are found and read again, in both layouts", "[store]") {
  for (const auto format : kFormats) {
    TemporaryFolder folder;
    const auto store = CallStore::create(format, folder.path(), 3);
    CHECK(store->root().rfind(folder / "op_capture_result/3/20", 0) == 0);
    const CallKey key{"aten::add.Tensor", 12};
    const std::string path = store->write(key, CallFile::kInput, 0, call(12));
    CHECK_THAT(path, Catch::EndsWith("aten.add.Tensor/12/input.pth"));
    store->write(key, CallFile::kGradInputs, 0, call(1));
    CHECK_THAT(store->write(key, CallFile::kGradInputs, 1, call(2)), Catch::EndsWith("/12/grad_inputs.2.pth"));
    CHECK_THAT(store->write_text(key, CallFile::kMeta, 0, "{\"format\": 1}"), Catch::EndsWith("/12/meta.json"));
    store->write({"torch.Tensor.mul", 9}, CallFile::kInput, 0, call(9));
    store->flush();
    CHECK(store->bytes_written() > 3000);

    for (const auto& place : {folder.path(), store->root() + "/"}) {
      const FoundCalls stored = find_calls(place);
      CHECK(stored.problems.empty());
      REQUIRE(stored.calls.size() == 2);
      CHECK_THAT(stored.calls[0]->path(), Catch::EndsWith("torch.Tensor.mul/9"));
      const StoredCall& add = *stored.calls[1];
      CHECK(add.has(CallFile::kInput));
      CHECK(add.has(CallFile::kGradInputs, 1));
      CHECK_FALSE(add.has(CallFile::kGradInputs, 2));
      CHECK_FALSE(add.has(CallFile::kOutput));
      CHECK(same_value(add.read(CallFile::kInput), call(12)));
      CHECK(same_value(add.read(CallFile::kGradInputs, 1), call(2)));
      CHECK(add.read_text(CallFile::kMeta) == "{\"format\": 1}");
      CHECK_THROWS_WITH(add.read(CallFile::kOutput), Catch::Contains("12/output.pth"));
      CHECK_THROWS_WITH(stored.calls[0]->read_text(CallFile::kMeta), Catch::Contains("9/meta.json"));
    }
  }
}

TEST_CASE("A large call in a container is mapped and aligned", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kContainer, folder.path(), 0);
  const auto large = at::arange(1 << 20, at::kFloat);
  store->write({"a", 1}, CallFile::kInput, 0, call(1));
  store->write({"a", 2}, CallFile::kInput, 0, large);
  store->flush();
  const auto stored = find_calls(folder.path());
  const auto back = flatten_tensors(stored.calls.at(1)->read(CallFile::kInput)).at(0);
  CHECK(back.equal(large));
  CHECK(reinterpret_cast<uintptr_t>(back.const_data_ptr()) % 64 == 0);
  back.fill_(0);
  CHECK(flatten_tensors(stored.calls[1]->read(CallFile::kInput)).at(0).equal(large));
}

TEST_CASE("A folder belongs to a single scope: the next in the same minute gets another name", "[store]") {
  TemporaryFolder folder;
  std::set<std::string> roots;
  for (int i = 0; i < 4; ++i) roots.insert(CallStore::create(CaptureFormat::kFolders, folder.path(), 0)->root());
  CHECK(roots.size() == 4);
}

TEST_CASE("Operator names become folder names that every file system takes", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  const auto folder_of = [&](const std::string& op) {
    return fs::path(store->write({op, 1}, CallFile::kInput, 0, call(1))).parent_path().parent_path();
  };
  CHECK(folder_of("torch.Tensor.mul").filename() == "torch.Tensor.mul");
  CHECK(folder_of("a::b/c").filename() == "a.b.c");
  for (const std::string odd : {"..", "", ".", "../../x", "a\nb"}) CHECK(folder_of(odd).parent_path() == store->root());
  const std::string long_name(300, 'x');
  CHECK(folder_of(long_name).filename().string().size() <= 200);
  CHECK(folder_of(long_name) != folder_of(long_name + "y"));
  CHECK(folder_of(long_name) == folder_of(long_name));
}

TEST_CASE("Nothing but whole files has a final name", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  store->write({"a", 1}, CallFile::kInput, 0, call(1));
  CHECK(fs::directory_iterator(store->root() + "/a/1")->path().filename() == "input.pth");
  write_bytes(store->root() + "/a/1/output.pth.tmp", "half");
  const auto stored = find_calls(folder.path());
  CHECK(stored.calls.size() == 1);
  REQUIRE(stored.problems.size() == 1);
  CHECK_THAT(stored.problems[0], Catch::Contains("a/1/output.pth.tmp: cut off"));
}

TEST_CASE("A store that cannot write says where and why", "[store]") {
  TemporaryFolder folder;
  write_bytes(folder / "file", "");
  CHECK_THAT(exception_text([&] { CallStore::create(CaptureFormat::kFolders, folder / "file", 0); }),
             Catch::Contains("file/op_capture_result: cannot be created: Not a directory"));
  for (const auto format : kFormats) {
    const auto store = CallStore::create(format, folder.path(), 0);
    CHECK_THAT(exception_text([&] {
                 store->write({"a", 1}, CallFile::kInput, 0, at::full({2}, 1, at::kFloat).to_mkldnn());
               }),
               Catch::Contains("a/1/input.pth") && Catch::Contains("_mkldnn"));
  }
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  fs::remove_all(store->root());
  CHECK_THAT(exception_text([&] {
               store->write({"a", 1}, CallFile::kInput, 0, call(1));
             }),
             Catch::Contains(store->root() + "/a: cannot be created: No such file"));
}

TEST_CASE("A full disk is an Error, and files written before stay good", "[store]") {
  for (const auto format : kFormats) {
    TemporaryFolder folder;
    const auto store = CallStore::create(format, folder.path(), 0);
    store->write({"a", 1}, CallFile::kInput, 0, call(1));
    // A limit on the size of files stands in for a full disk.
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit old_limit = {};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
    rlimit limit = old_limit;
    limit.rlim_cur = 10000;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const std::string message = exception_text([&] { store->write({"a", 2}, CallFile::kInput, 0, at::arange(10000)); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
    std::signal(SIGXFSZ, old_handler);
    CHECK_THAT(message, Catch::Contains(store->root()) && Catch::Contains("cannot be written: File too large"));

    store->write({"a", 3}, CallFile::kInput, 0, call(3));
    store->flush();
    const auto stored = find_calls(folder.path());
    REQUIRE(stored.calls.size() == 2);
    CHECK(same_value(stored.calls[0]->read(CallFile::kInput), call(1)));
    CHECK(same_value(stored.calls[1]->read(CallFile::kInput), call(3)));
  }
}

TEST_CASE("A container reads before, between and after flushes", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kContainer, folder.path(), 0);
  const std::string path = store->root() + "/calls.zip";
  for (int64_t id = 0; id < 6; ++id) {
    store->write({"a", static_cast<uint64_t>(id)}, CallFile::kInput, 0, call(id));
    const bool flushed = id % 3 == 1;
    if (flushed) store->flush();
    if (id == 4) store->flush();
    const auto stored = find_calls(path);
    REQUIRE(stored.problems.size() == (flushed ? 0 : 1));
    if (!flushed) CHECK(stored.problems[0].find("it has no whole directory at its end") != std::string::npos);
    REQUIRE(stored.calls.size() == static_cast<size_t>(id) + 1);
    for (int64_t k = 0; k <= id; ++k)
      CHECK(same_value(stored.calls[static_cast<size_t>(k)]->read(CallFile::kInput), call(k)));
  }
}

TEST_CASE("A container that was cut off gives the entries before the cut and says so", "[store]") {
  TemporaryFolder folder;
  std::string whole;
  {
    const auto store = CallStore::create(CaptureFormat::kContainer, folder.path(), 0);
    for (uint64_t id = 0; id < 3; ++id) store->write({"a", id}, CallFile::kInput, 0, call(static_cast<int64_t>(id)));
    store->flush();
    whole = read_bytes(store->root() + "/calls.zip");
  }
  const MemorySource source(whole);
  const auto entries = read_zip_directory(source);
  const uint64_t entries_end = payload_position(source, entries[2]) + entries[2].size;
  const std::string path = folder / "calls.zip";
  for (size_t cut = 1; cut < whole.size(); cut += 37) {
    write_bytes(path, whole.substr(0, cut));
    const std::string message = exception_text([&] {
      const auto all = find_calls(path);
      size_t expected = 0;
      for (const auto& entry : entries) expected += payload_position(source, entry) + entry.size <= cut;
      CHECK(all.calls.size() == expected);
      for (const auto& stored : all.calls) CHECK_NOTHROW(stored->read(CallFile::kInput));
      const bool between = cut >= entries_end;
      if (!between && !all.problems.empty()) CHECK_THAT(all.problems[0], Catch::Contains("calls.zip: cut off"));
      if (!between && entries[expected].header_position != cut) CHECK(all.problems.size() == 1);
    });
    CHECK(message == "no error");
  }
}

TEST_CASE("A damaged entry of a container spoils itself only", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kContainer, folder.path(), 0);
  for (uint64_t id = 0; id < 2; ++id) store->write({"a", id}, CallFile::kInput, 0, call(static_cast<int64_t>(id)));
  store->flush();
  const std::string path = store->root() + "/calls.zip";
  std::string bytes = read_bytes(path);
  bytes[300] = static_cast<char>(bytes[300] ^ 1);
  write_bytes(path, bytes);
  const auto stored = find_calls(path);
  REQUIRE(stored.calls.size() == 2);
  CHECK_THROWS_WITH(stored.calls[0]->read(CallFile::kInput), Catch::Contains("calls.zip!a/0/input.pth: damaged"));
  CHECK(same_value(stored.calls[1]->read(CallFile::kInput), call(1)));
}

TEST_CASE("Everything that was reported as written survives kill -9", "[store]") {
  for (const auto format : kFormats) {
    TemporaryFolder folder;
    const Value value = call(5);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = CallStore::create(format, folder.path(), 0);
      for (uint64_t id = 0;; ++id) {
        store->write({"a", id}, CallFile::kInput, 0, value);
        if (::write(ends[1], "x", 1) != 1) ::_exit(1);
      }
    }
    char reported[200];
    size_t count = 0;
    while (count < sizeof reported) {
      const ssize_t got = ::read(ends[0], reported, sizeof reported - count);
      REQUIRE(got > 0);
      count += static_cast<size_t>(got);
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    ::close(ends[1]);
    const auto all = find_calls(folder.path());
    CHECK(all.calls.size() >= count);
    for (const auto& stored : all.calls) CHECK(same_value(stored->read(CallFile::kInput), value));
  }
}

TEST_CASE("Names in a container are only names", "[store]") {
  TemporaryFolder folder;
  std::string bytes;
  ZipDirectory directory;
  const std::string payload = testing::encode(call(1));
  for (const std::string name : {"../../escape/input.pth", "/etc/x/input.pth", "c/../3/input.pth", "c//3/input.pth",
                                 "c\x1b[2J/3/input.pth", "b/", "input.pth", "b/2/input.pth", "b/2/input.pth"}) {
    directory.add(name, payload.size(), crc32_of(payload), bytes.size());
    append_local_header(bytes, name, payload.size(), crc32_of(payload), bytes.size());
    bytes += payload;
  }
  directory.append_to(bytes, bytes.size());
  write_bytes(folder / "mine.zip", bytes);
  const auto all = find_calls(folder / "mine.zip");
  REQUIRE(all.calls.size() == 2);
  for (const auto& stored : all.calls) CHECK(same_value(stored->read(CallFile::kInput), call(1)));
  REQUIRE(all.problems.size() == 2);
  CHECK_THAT(all.problems[0], Catch::Contains("b/2/input.pth: is there more than once"));
  CHECK_THAT(all.problems[1], Catch::Contains("5 entries are refused") && Catch::Contains("'../../escape/input.pth'"));
  CHECK_THAT(exception_text([&] { open_call(folder / "calls.zip!../../escape"); }), Catch::Contains("calls.zip"));
}

TEST_CASE("Every part of a call's path is a name", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::in_folder(folder.path());
  for (const std::string name : {"..", "a/../../b", "\x01"}) {
    const std::string path = store->write({name, 1, name}, CallFile::kInput, 0, call(1));
    CHECK(fs::weakly_canonical(path).string() == path);
    CHECK(path.rfind(folder / "", 0) == 0);
  }
}

TEST_CASE("Captures of ditorch are found, in the order of their numbers", "[store]") {
  const auto stored = find_calls(std::string(OP_TOOLS_TEST_DATA) + "/ditorch_captures");
  CHECK(stored.problems.empty());
  REQUIRE(stored.calls.size() == 17);
  CHECK_THAT(stored.calls[0]->path(), Catch::Contains("torch.nn.functional.conv2d/3681/1/"));
  CHECK_THAT(stored.calls[16]->path(), Catch::Contains("torch.functional.split/3681/17/"));
  CHECK(stored.calls[0]->has(CallFile::kGradInputs));
}

TEST_CASE("Finding copes with loops, leftovers and things that are no captures", "[store]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  store->write({"a", 1}, CallFile::kInput, 0, call(1));
  store->write({"a", 2}, CallFile::kOutput, 0, call(2));
  fs::create_directory_symlink(folder.path(), store->root() + "/a/loop");
  fs::create_symlink("nowhere", store->root() + "/dangling");
  TemporaryFolder elsewhere;
  const auto other = CallStore::create(CaptureFormat::kFolders, elsewhere.path(), 0);
  other->write({"b", 1}, CallFile::kInput, 0, call(1));
  fs::create_directory_symlink(other->root(), store->root() + "/outside");
  fs::create_directory(store->root() + "/c");
  fs::create_symlink(other->root() + "/b/1/input.pth", store->root() + "/c/input.pth");
  write_bytes(store->root() + "/calls.zip", "rubbish");
  write_bytes(store->root() + "/notes.txt", "hello");
  const auto stored = find_calls(folder.path());
  CHECK(stored.calls.size() == 1);
  REQUIRE(stored.problems.size() == 4);
  CHECK_THAT(stored.problems[0], Catch::Contains("a/2: has files of a call but no input.pth"));
  CHECK_THAT(stored.problems[1], Catch::Contains("c/input.pth: is a symbolic link"));
  CHECK_THAT(stored.problems[2], Catch::Contains("calls.zip: cut off"));
  CHECK_THAT(stored.problems[3], Catch::Contains("outside: is a symbolic link"));
  CHECK_THAT(exception_text([&] { read_call_file(store->root() + "/c/input.pth"); }),
             Catch::Contains("is a symbolic link"));
  const auto named = folder / "named";  // by the user
  fs::create_directory_symlink(other->root(), named);
  CHECK(find_calls(named).calls.size() == 1);

  CHECK_THAT(exception_text([&] { find_calls(folder / "missing"); }),
             Catch::Contains("missing: cannot be read: No such file"));
  CHECK_THAT(exception_text([&] { find_calls(store->root() + "/a/1/input.pth"); }),
             Catch::Contains("no container of calls"));
  fs::create_directory(folder / "empty");
  CHECK(find_calls(folder / "empty").calls.empty());
}

}  // namespace
}  // namespace op_tools
