// Files of a remote store: a reader asks for the bytes that it reads, of files in the folder only; an error of the
// loader is its own.
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/range_loader.h"
#include "catch.h"
#include "pth/zip.h"
#include "temporary_folder.h"

namespace op_tools {
namespace {

using test::TemporaryFolder;

struct AskedRange {
  std::string path;
  uint64_t begin, end;
  bool operator==(const AskedRange&) const = default;
};

// The loader of a test, which is taken away at its end.
class ScopedLoader {
 public:
  ScopedLoader(const std::string& folder, RangeLoader loader) { set_range_loader(folder, std::move(loader)); }
  ~ScopedLoader() { set_range_loader("", {}); }
};

TEST_CASE("a reader asks the loader for the ranges that it reads", "[range_loader]") {
  const TemporaryFolder folder;
  const std::string remote = folder / "remote", beside = folder / "remote2";
  for (const std::string& path : {remote, beside}) std::filesystem::create_directory(path);
  constexpr uint64_t kSize = 3 << 20;
  for (const std::string& path : {remote + "/calls.zip", beside + "/calls.zip"})
    std::ofstream(path) << std::string(kSize, '.');

  std::vector<AskedRange> asked;
  const ScopedLoader loader(remote, [&](const std::string& path, uint64_t begin, uint64_t end) {
    asked.push_back({path, begin, end});
    std::fstream file(path, std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(begin));
    file << "loaded";
  });
  const FileSource source(remote + "/calls.zip");
  CHECK(source.load(10, 6).bytes == "loaded");
  CHECK(source.load(20, 2 << 20).bytes.substr(0, 7) == "loaded.");  // mapped
  char bytes[3];
  source.read(40, bytes, sizeof bytes);
  CHECK(std::string_view(bytes, 3) == "loa");
  CHECK(
      (asked == std::vector<AskedRange>{{remote + "/calls.zip", 10, 16},
                                        {remote + "/calls.zip", 20, 20 + (2 << 20)},
                                        {remote + "/calls.zip", 40, 43}}));  // c10 prints a vector by its elements' <<
  CHECK(FileSource(beside + "/calls.zip").load(10, 6).bytes == "......");
  CHECK(asked.size() == 3);
  CHECK_THROWS_AS(source.load(kSize, 1), Error);  // before it asks
  CHECK(asked.size() == 3);
}

TEST_CASE("an error of the loader reaches who reads", "[range_loader]") {
  const TemporaryFolder folder;
  std::ofstream(folder / "calls.zip") << "0123456789";
  const ScopedLoader loader(folder.path(),
                            [](const std::string&, uint64_t, uint64_t) { throw Error("the connection was reset"); });
  const FileSource source(folder / "calls.zip");
  CHECK_THROWS_WITH(source.load(0, 4), "the connection was reset");
}

}  // namespace
}  // namespace op_tools
