// Bytes that calls share: stored once, put together again as they were, and never missing where a call refers to them.
#include "pth/content_store.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "calls/call_store.h"
#include "catch.h"
#include "pth/pth.h"
#include "pth_testing.h"
#include "temporary_folder.h"

namespace op_tools {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::same_value;

const auto kStoreFormats = {CaptureFormat::kFolders, CaptureFormat::kContainer};

Value file_of(const Values& args, const char* name = "a", int64_t id = 1) {
  return make_dict({{"name", name}, {"args", make_tuple(args)}, {"kwargs", make_dict({})}, {"id", id}});
}

uint64_t size_of(const std::string& root) {
  uint64_t total = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) total += entry.file_size();
  }
  return total;
}

TEST_CASE("The same bytes are stored once, whatever tensor or call they come from", "[dedupe]") {
  for (const auto format : kStoreFormats) {
    TemporaryFolder folder;
    const auto store = CallStore::create(format, folder.path(), 0, true);
    const at::Tensor weight = at::randn({256, 256});
    for (int id = 1; id <= 10; ++id)
      store->write({"a", static_cast<uint64_t>(id)}, CallFile::kInput, 0, file_of({weight, id}));
    store->write({"a", 1}, CallFile::kOutput, 0, file_of({weight.clone()}));
    store->flush();
    CHECK(size_of(store->root()) < weight.nbytes() + 11 * 4096);
    const FoundCalls stored = find_calls(folder.path());
    CHECK(stored.problems.empty());
    REQUIRE(stored.calls.size() == 10);
    for (size_t i = 0; i < 10; ++i) {
      CHECK(same_value(stored.calls[i]->read(CallFile::kInput), file_of({weight, static_cast<int64_t>(i) + 1})));
    }
    CHECK(same_value(stored.calls[0]->read(CallFile::kOutput), file_of({weight})));
  }
}

TEST_CASE("A change by any way is another content", "[dedupe]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0, true);
  const at::Tensor weight = at::zeros({4096});
  store->write({"a", 1}, CallFile::kInput, 0, file_of({weight}));
  static_cast<float*>(weight.data_ptr())[4095] = 1;  // no version counter sees this
  store->write({"a", 2}, CallFile::kInput, 0, file_of({weight}));
  const FoundCalls stored = find_calls(folder.path());
  CHECK(same_value(stored.calls.at(0)->read(CallFile::kInput), file_of({at::zeros({4096})})));
  CHECK(same_value(stored.calls.at(1)->read(CallFile::kInput), file_of({weight})));
}

TEST_CASE("Tensors come back as they were: dtypes, strides, aliases, bits, an object twice", "[dedupe]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0, true);
  const at::Tensor base = at::randn({64, 64});
  const at::Tensor complex = at::randn({64, 64}, at::kComplexFloat);
  const at::Tensor leaf = at::randn({2048}).set_requires_grad(true);
  const Values args{base,
                    base.t(),
                    base,
                    base.narrow(0, 8, 16),
                    base.clone(),
                    complex.conj(),
                    at::imag(complex),
                    leaf,
                    at::randn({3000}).to(at::kBFloat16),
                    at::full({5000}, true),
                    at::full({2}, 3),
                    at::zeros({0}),
                    at::randn({40, 50}).to_sparse()};
  store->write({"a", 1}, CallFile::kInput, 0, file_of(args));
  const Value back = find_calls(folder.path()).calls.at(0)->read(CallFile::kInput);
  CHECK(same_value(back, file_of(args)));
  const auto tensors = flatten_tensors(back);
  CHECK(tensors[0].is_same(tensors[2]));
  CHECK(tensors[0].is_alias_of(tensors[1]));
  CHECK(tensors[0].is_alias_of(tensors[3]));
  CHECK_FALSE(tensors[0].is_alias_of(tensors[4]));  // equal bytes, but memory of its own
  CHECK(tensors[5].is_conj());
  CHECK(tensors[7].requires_grad());
  // A reader's changes are its own.
  tensors[0].fill_(0);
  CHECK(tensors[1].abs().max().item<float>() == 0);
  CHECK(same_value(find_calls(folder.path()).calls.at(0)->read(CallFile::kInput), file_of(args)));
}

TEST_CASE("Small tensors stay in the call's own file", "[dedupe]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0, true);
  store->write({"a", 1}, CallFile::kInput, 0, file_of({at::zeros({16})}));
  CHECK_FALSE(fs::exists(store->root() + "/tensors"));
}

TEST_CASE("Calls that share bytes are exported as calls that stand alone", "[dedupe]") {
  for (const auto format : kStoreFormats) {
    TemporaryFolder folder;
    const auto store = CallStore::create(format, folder.path(), 0, true);
    const at::Tensor weight = at::randn({64, 64});
    for (const char* op : {"torch.add", "aten::mul.Tensor"}) {
      store->write({op, 3}, CallFile::kInput, 0, file_of({weight, weight}, op, 3));
      store->write({op, 3}, CallFile::kOutput, 0, file_of({weight}, op, 3));
      for (const auto file : {CallFile::kGradInputs, CallFile::kGradOutputs}) {
        store->write({op, 3}, file, 0, file_of({weight}, op, 3));
        store->write({op, 3}, file, 1, file_of({at::zeros({64, 64})}, op, 3));
      }
      store->write_text({op, 3}, CallFile::kMeta, 0, "{}");
    }
    store->flush();
    std::vector<std::string> problems;
    CHECK(export_calls(store->root(), folder / "out", &problems) == 2);
    CHECK(problems.empty());
    fs::remove_all(store->root());
    for (const auto& [op, name] :
         {std::pair("torch.add", "torch.add"), std::pair("aten::mul.Tensor", "aten.mul.Tensor")}) {
      const std::string call = (folder / "out/") + name + "/3";
      CHECK(same_value(read_pth(call + "/input.pth"), file_of({weight, weight}, op, 3)));
      CHECK(same_value(read_pth(call + "/grad_inputs.2.pth"), file_of({at::zeros({64, 64})}, op, 3)));
      CHECK(fs::exists(call + "/meta.json"));
    }
    CHECK_FALSE(fs::exists(folder / "out/tensors"));
  }
}

TEST_CASE("Missing, damaged and hostile references are errors that say so", "[dedupe]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0, true);
  store->write({"a", 1}, CallFile::kInput, 0, file_of({at::randn({64, 64})}));
  const std::string input = store->root() + "/a/1/input.pth";
  CHECK_THROWS_WITH(read_pth(input), Catch::Contains("shares with other calls"));

  const auto reference = [](const std::string& content, int64_t offset, at::ScalarType dtype = at::kFloat) {
    return make_dict({{"__tensor__", make_dict({{"content", content},
                                                {"dtype", dtype},
                                                {"shape", make_tuple({2, 3})},
                                                {"stride", make_tuple({3, 1})},
                                                {"offset", offset},
                                                {"storage", 0},
                                                {"tensor", 0},
                                                {"requires_grad", false}})}});
  };
  fs::create_directory(folder / "b");
  const auto read_back = [&](const Value& value) {
    CallStore::in_folder(folder / "b")->write({"a", 1}, CallFile::kInput, 0, value);
    ContentReader shared([](const std::string&) { return at::zeros({64}, at::kByte); });
    return read_pth(folder / "b/a/1/input.pth", &shared);
  };
  const std::string content(32, 'a');
  CHECK(read_back(reference(content, 10)).is<at::Tensor>());
  CHECK_THROWS_WITH(read_back(reference(content, 11)), Catch::Contains("outside its storage"));
  CHECK_THROWS_WITH(read_back(reference(content, -1)), Catch::Contains("outside its storage"));
  CHECK_THROWS_WITH(read_back(reference(content, 0, at::kQInt8)), Catch::Contains("cannot be rebuilt"));
  CHECK(read_back(reference("../../../../../../etc/passwd.pth", 0)).is<Dict>());  // no name of a content: a plain dict

  for (const auto& entry : fs::directory_iterator(store->root() + "/tensors")) {
    std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(1000).put('x').put('y').put('z');
    CHECK_THROWS_WITH(read_call_file(input), Catch::Contains("damaged") && Catch::Contains("tensors/"));
    fs::remove(entry.path());
  }
  CHECK_THROWS_WITH(read_call_file(input), Catch::Contains("op-tools export"));
}

// In memory, and not a file's bytes.
size_t own_memory() {
  size_t all = 0, resident = 0, of_files = 0;
  std::ifstream("/proc/self/statm") >> all >> resident >> of_files;
  return (resident - of_files) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_CASE("A small file that refers to the same bytes many times takes their memory once", "[dedupe]") {
  TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0, true);
  // As the state of an optimizer in its first step: equal, and memory of their own. Below and above the mapped size.
  for (const int64_t size : {200'000, 300'000}) {
    store->write({"a", 1}, CallFile::kInput, 0, file_of({at::zeros({size})}));
    const auto content = fs::path(*fs::directory_iterator(store->root() + "/tensors")).stem().string();
    Values references;
    for (int64_t i = 0; i < 1000; ++i) {
      references.push_back(make_dict({{"__tensor__", make_dict({{"content", content},
                                                                {"dtype", at::kFloat},
                                                                {"shape", make_tuple({size})},
                                                                {"stride", make_tuple({1})},
                                                                {"offset", 0},
                                                                {"storage", i},
                                                                {"tensor", i},
                                                                {"requires_grad", false}})}}));
    }
    CallStore::in_folder(store->root())->write({"a", 2}, CallFile::kInput, 0, file_of(references));
    const size_t before = own_memory();
    const Value value = read_call_file(store->root() + "/a/2/input.pth");
    CHECK(own_memory() <
          before + (size_t{300} << 20));  // copies would take 800 and more; the thread sanitizer takes 200
    const auto tensors = flatten_tensors(value);
    REQUIRE(tensors.size() == 1000);
    tensors[0].fill_(1);
    tensors[7].fill_(2);
    CHECK(tensors[0].sum().item<double>() == static_cast<double>(size));
    CHECK(tensors[7].sum().item<double>() == 2.0 * static_cast<double>(size));
    CHECK(tensors[8].sum().item<double>() == 0);
    CHECK(flatten_tensors(read_call_file(store->root() + "/a/2/input.pth"))[0].sum().item<double>() == 0);
    fs::remove_all(store->root() + "/tensors");
    fs::create_directory(store->root() + "/tensors");
  }
}

// A file that a call refers to has its final name before the call has: at whatever moment the program is killed.
TEST_CASE("kill -9 leaves no call whose bytes are missing", "[dedupe][slow]") {
  for (const auto format : kStoreFormats) {
    for (int trial = 0; trial < 8; ++trial) {
      TemporaryFolder folder;
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        const auto store = CallStore::create(format, folder.path(), 0, true);
        for (uint64_t id = 1;; ++id) {
          const at::Tensor own = at::full({2048}, static_cast<int64_t>(id));
          store->write({"a", id}, CallFile::kInput, 0, file_of({own, own}));
        }
      }
      ::usleep(static_cast<useconds_t>(20'000 + 3'000 * trial));
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      for (const auto& call : find_calls(folder.path()).calls) CHECK_NOTHROW(call->read(CallFile::kInput));
    }
  }
}

}  // namespace
}  // namespace op_tools
