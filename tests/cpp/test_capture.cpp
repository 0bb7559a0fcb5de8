// OpCapture from C++: the contents of the files, that they are the call's, and that failures stay ours.
#include "capture/capture_hook.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "calls/call_store.h"
#include "calls/packed_values.h"
#include "calls/snapshot.h"
#include "capture/record_writer.h"
#include "catch.h"
#include "coverage/coverage_file.h"
#include "pth/pth.h"
#include "quiet_log.h"
#include "scoped_variable.h"
#include "temporary_folder.h"
#include "tensor/copy_memory.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::ScopedVariable;
using op_tools::test::TemporaryFolder;

namespace {

CaptureOptions capture_into(const TemporaryFolder& folder, const char* ops, const char* format = "folders") {
  CaptureOptions options;
  options.ops = ops;
  options.output_dir = folder.path();
  options.format = format;
  return options;
}

const at::Tensor& tensor_in(const Value& value) {
  return *value.get_if<at::Tensor>();
}
const Value& item(const Value& value, size_t index) {
  return (*sequence_items(value))[index];
}

struct Numbered {
  int64_t number = 0;
  std::string_view text;

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("number", self.number);
    visit("text", self.text);
  }
};

// The same bytes in memory; another order of fields.
struct Swapped {
  std::string_view text;
  int64_t number = 0;

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("text", self.text);
    visit("number", self.number);
  }
};

struct Everything {
  Numbered inner;
  std::optional<bool> known, unknown;
  std::vector<int> list;
  c10::SmallVector<double, 2> small;
  std::string text;
  Value value, none;

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit("inner", self.inner);
    visit("known", self.known);
    visit("unknown", self.unknown);
    visit("list", self.list);
    visit("small", self.small);
    visit("text", self.text);
    visit("value", self.value);
    visit("none", self.none);
  }
};

}  // namespace

TEST_CASE("a captured call is in its files as it was", "[capture]") {
  const QuietLog quiet;
  const char* const format = GENERATE("folders", "container");
  const TemporaryFolder folder;
  auto a = at::rand({3, 3});
  const auto a_before = a.clone();
  at::Tensor product;
  {
    OpCapture capture(capture_into(folder, "mm, add_.Tensor", format));
    product = at::mm(a, a);
    a.add_(1);
  }
  const FoundCalls stored = find_calls(folder.path());
  CHECK(stored.problems.empty());
  REQUIRE(stored.calls.size() == 2);

  const StoredCall& mm = *stored.calls[0];
  const Value input = mm.read(CallFile::kInput);
  CHECK(*find_key(input, "name")->get_if<std::string>() == "aten::mm");
  const Value& args = *find_key(input, "args");
  CHECK(at::equal(tensor_in(item(args, 0)), a_before));
  CHECK(tensor_in(item(args, 0)).is_same(tensor_in(item(args, 1))));  // the same object twice, once in the file
  CHECK(at::equal(tensor_in(item(*find_key(mm.read(CallFile::kOutput), "args"), 0)), product));

  const StoredCall& add = *stored.calls[1];
  CHECK(at::equal(tensor_in(item(*find_key(add.read(CallFile::kInput), "args"), 0)), a_before));
  const Value output = add.read(CallFile::kOutput);
  CHECK(at::equal(tensor_in(item(*find_key(output, "args"), 0)), a));
  CHECK(find_key(output, "mutated") != nullptr);

  const auto meta = nlohmann::json::parse(mm.read_text(CallFile::kMeta));
  CHECK(meta["name"] == "aten::mm");
  CHECK(meta["level"] == "aten");
  CHECK(meta["inputs"][0]["shape"] == nlohmann::json({3, 3}));
  CHECK(meta["inputs"][0]["storage"] == meta["inputs"][1]["storage"]);
  CHECK(meta["state"]["grad_enabled"] == true);
}

TEST_CASE("calls that are gone are missing in the account of the run", "[capture]") {
  const QuietLog quiet;
  const char* const format = GENERATE("folders", "container");
  const TemporaryFolder folder;
  {
    OpCapture capture(capture_into(folder, "sin, cos", format));
    const auto x = at::ones({3});
    at::sin(x);
    at::sin(x);
    at::cos(x);
  }
  const std::string root = std::filesystem::directory_iterator(folder / "op_capture_result/0")->path();
  const auto account = read_coverage(root);
  REQUIRE(account.has_value());
  CHECK(account->facts.tool == "OpCapture");
  CHECK(account->facts.rows == std::map<std::string, uint64_t>{{"aten::cos", 1}, {"aten::sin", 2}});
  FoundCalls whole = find_calls(folder.path());
  whole.name_missing();
  CHECK(whole.problems.empty());
  if (std::string(format) == "container") return;
  std::filesystem::remove_all(root + "/aten.sin");
  FoundCalls stored = find_calls(folder.path());
  CHECK(stored.problems.empty());
  stored.name_missing();
  REQUIRE(stored.problems.size() == 1);
  CHECK_THAT(stored.problems[0], Catch::StartsWith(root + ": 2 of 3 saved calls are missing (2 of aten::sin)"));
  CHECK(find_calls(root + "/aten.cos").accounted.empty());  // no whole run
}

TEST_CASE("a small view of a large storage gives small files", "[capture]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const auto large = at::zeros({1000, 1000});
  std::string root;
  {
    OpCapture capture(capture_into(folder, "sin"));
    at::sin(large.select(0, 500).narrow(0, 10, 10));
    at::sin(large.select(1, 7).narrow(0, 0, 10));  // strides of 1000 elements
    root = capture.result().root;
  }
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  CHECK(bytes < 100'000);
  const FoundCalls stored = find_calls(folder.path());
  REQUIRE(stored.calls.size() == 2);
  const Value second = stored.calls[1]->read(CallFile::kInput);
  const Value* strides = find_key(second, "restrided");
  REQUIRE(strides != nullptr);
  const auto& items = *strides->get_if<Dict>()->items;
  CHECK(*item(items[0].second, 0).get_if<int64_t>() == 1000);
}

TEST_CASE("limits leave calls out and count them", "[capture]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  auto options = capture_into(folder, "relu");
  options.max_per_signature = 2;
  OpCapture capture(options);
  for (int i = 0; i < 5; ++i) at::relu(at::ones({3}));
  for (int i = 0; i < 5; ++i) at::relu(at::ones({4}));
  const CaptureResult result = capture.result();
  REQUIRE(result.rows.size() == 1);
  CHECK(result.rows[0].calls == 4);
  CHECK(result.skipped == 6);
}

TEST_CASE("random calls keep the state that they drew from", "[capture]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  {
    OpCapture capture(capture_into(folder, "rand, ones"));
    at::ones({2});
    at::rand({2});
  }
  const FoundCalls stored = find_calls(folder.path());
  REQUIRE(stored.calls.size() == 2);
  CHECK(find_key(stored.calls[0]->read(CallFile::kInput), "rng") == nullptr);
  CHECK(find_key(stored.calls[1]->read(CallFile::kInput), "rng") != nullptr);
}

TEST_CASE("a queue that is smaller than a call loses nothing", "[capture]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  auto options = capture_into(folder, "relu", "container");
  options.max_pending_mb = 1;
  const auto x = at::ones({200'000});
  CaptureResult result;
  {
    OpCapture capture(options);
    for (int i = 0; i < 30; ++i) at::relu(x);
    result = capture.result();
  }
  CHECK(result.rows.at(0).calls == 30);
  CHECK(find_calls(folder.path()).calls.size() == 30);
}

TEST_CASE("where nothing can be written, the program goes on", "[capture]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/a_file";
  std::ofstream(file) << "in the way";
  CaptureOptions options;
  options.ops = "relu";
  options.output_dir = file;
  OpCapture capture(options);
  for (int i = 0; i < 3; ++i) CHECK(at::equal(at::relu(at::ones({3})), at::ones({3})));
  for (int i = 0; i < 100 && capture.result().failure.empty(); ++i) ::usleep(10'000);
  CHECK(capture.result().failure.find(file) != std::string::npos);
  CHECK(at::equal(at::relu(at::ones({3})), at::ones({3})));
}

TEST_CASE("a wrong option is an error before anything runs", "[capture]") {
  CaptureOptions options;
  CHECK_THROWS_AS(options.format = "tarball", Error);
  CaptureOptions list;
  list.ops = "torch.(";
  CHECK_THROWS_AS(OpCapture(list), Error);
}

TEST_CASE("a snapshot keeps strides, aliasing and flags, and shares nothing", "[snapshot]") {
  auto base = at::rand({4, 6});
  const auto view = base.t().slice(0, 1, 5, 2);
  Snapshot snapshot = take_snapshot(make_tuple({base, view}), "");
  const at::Tensor copy = tensor_in(item(snapshot.value, 0)), copied_view = tensor_in(item(snapshot.value, 1));
  CHECK(copied_view.strides() == view.strides());
  CHECK(copy.storage().data() == copied_view.storage().data());
  CHECK(copy.storage().data() != base.storage().data());
  const auto before = base.clone();
  base.zero_();
  CHECK(at::equal(copy, before));
  CHECK(snapshot.tensors[0].storage == snapshot.tensors[1].storage);
}

TEST_CASE("a value without a form in a file is noted, not refused", "[snapshot]") {
  const auto meta = at::ones({2}, at::TensorOptions().device(at::kMeta));
  const Snapshot snapshot = take_snapshot(make_tuple({at::ones({1}), make_list({meta})}), "args");
  REQUIRE(snapshot.unsupported.size() == 1);
  CHECK(snapshot.unsupported[0].where == "args[1][0]");
  CHECK(snapshot.unsupported[0].type == "meta tensor");
}

TEST_CASE("packed values of every kind come back, on another thread", "[snapshot]") {
  const auto shared = [](Values items) { return std::make_shared<const Values>(std::move(items)); };
  const Value plain = make_tuple({Value(),
                                  true,
                                  false,
                                  -7,
                                  0.1,
                                  "a text that is longer than a string holds in itself",
                                  c10::complex<double>(1, -2),
                                  at::kBFloat16,
                                  c10::Device(c10::kCPU),
                                  at::kSparse,
                                  at::MemoryFormat::ChannelsLast,
                                  at::kPerTensorAffine,
                                  Size{{2, 3}},
                                  Slice{shared({1, Value(), 2})},
                                  Ellipsis{},
                                  make_list({}),
                                  make_list({1}),
                                  NamedTuple{shared({1, 2}), "torch.return_types.max"},
                                  Set{shared({"a"})},
                                  Bytes{std::string("\0b", 2)},
                                  make_dict({{"key", 1}, {2, make_dict({})}}),
                                  Unsupported{"function", "a callable has no form in a file"}});
  const auto tensor = at::rand({3});
  Packer packer;
  packer.put(Numbered{5, "before"});
  packer.begin();
  const Value both = make_tuple({plain, tensor});
  packer.tree(both);
  CHECK(packer.end().unsupported == 1);
  packer.put(Numbered{6, "after"});
  const Packed packed = packer.finish();
  std::thread([&] {
    Unpacker from(packed);
    CHECK(from.get<Numbered>().number == 5);
    const Snapshot snapshot = from.snapshot("");
    CHECK(describe(item(snapshot.value, 0)) == describe(plain));
    CHECK(at::equal(tensor_in(item(snapshot.value, 1)), tensor));
    CHECK(from.get<Numbered>().text == "after");
    from.finish();
  }).join();
}

TEST_CASE("a second tree refers to the copies of the first", "[snapshot]") {
  const auto meta = at::ones({2}, at::TensorOptions().device(at::kMeta));
  const auto a = at::rand({3}), b = at::rand({3});
  Packer packer;
  packer.begin();
  const Value list = make_list({a, meta, a});
  packer.tree(list);
  packer.end();
  const std::vector<const at::Tensor*> known(packer.tensors().begin(), packer.tensors().end());
  packer.fill();
  a.zero_();
  packer.begin(/*owned=*/false, /*restride=*/true, known);
  const Value second = make_list({b, a, meta});
  packer.tree(second);
  CHECK(packer.end().bytes == b.nbytes());
  const Packed packed = packer.finish();
  Unpacker from(packed);
  const Snapshot first = from.snapshot("");
  const Values copies = from.copies();
  const Value again = from.snapshot("", &copies).value;
  CHECK(tensor_in(item(again, 1)).is_same(tensor_in(item(first.value, 0))));
  CHECK(tensor_in(item(again, 1)).is_same(tensor_in(item(first.value, 2))));
  CHECK(!at::equal(tensor_in(item(again, 1)), a));
  CHECK(at::equal(tensor_in(item(again, 0)), b));
  CHECK(item(again, 2).is<Unsupported>());
}

TEST_CASE("fields of every kind come back", "[snapshot]") {
  Everything written;
  written.inner = {7, "a view"};
  written.known = false;
  written.list = {1, 2, 3};
  written.small = {0.5};
  written.text = "a string";
  written.value = make_dict({{"cpu", "state"}});
  Packer packer;
  packer.put(written);
  const Packed packed = packer.finish();
  Unpacker from(packed);
  const auto read = from.get<Everything>();
  from.finish();
  CHECK(read.inner.number == 7);
  CHECK(read.inner.text == "a view");
  CHECK(read.known == false);
  CHECK(read.unknown == std::nullopt);
  CHECK(read.list == written.list);
  CHECK(read.small == written.small);
  CHECK(read.text == written.text);
  CHECK(describe(read.value) == describe(written.value));
  CHECK(read.none.is<None>());
}

TEST_CASE("a value packed as another type is an error, not another value", "[snapshot]") {
  const auto packed_with = [](auto&& fill) {
    Packer packer;
    fill(packer);
    return packer.finish();
  };
  const auto record = [](Packer& packer) { packer.put(Numbered{5, "text"}); };
  const auto snapshot = [](Packer& packer) {
    packer.begin();
    packer.tree(Value(1));
    packer.end();
  };
  const Packed of_record = packed_with(record), other = packed_with(snapshot), none = packed_with([](Packer&) {});
  CHECK_THROWS_WITH(Unpacker(of_record).get<Swapped>(), Catch::Contains("something else"));
  CHECK_THROWS_WITH(Unpacker(of_record).snapshot(""), Catch::Contains("something else"));
  CHECK_THROWS_WITH(Unpacker(other).get<Numbered>(), Catch::Contains("something else"));
  CHECK_THROWS_WITH(Unpacker(none).get<Numbered>(), Catch::Contains("end before"));
  CHECK_THROWS_WITH(Unpacker(none).snapshot(""), Catch::Contains("end before"));
  CHECK_THROWS_WITH(Unpacker(of_record).finish(), Catch::Contains("were not read"));
  Unpacker twice(of_record);
  twice.get<Numbered>();
  twice.finish();
  CHECK_THROWS_WITH(twice.get<Numbered>(), Catch::Contains("end before"));
}

TEST_CASE("packed values that nobody opens free their copies", "[snapshot]") {
  const auto large = at::rand({1 << 20});
  release_copy_memory();
  const size_t idle = idle_copy_memory();
  {
    Packer packer;
    packer.begin();
    packer.tree_tensor(large);
    packer.end();
    Packed packed = packer.finish();
    const Packed moved = std::move(packed);
  }
  CHECK(idle_copy_memory() >= idle + large.nbytes());  // it waits to be taken over
  release_copy_memory();
}

TEST_CASE("A large copy takes over the memory of an earlier copy of its size", "[capture]") {
  for (const size_t size : {size_t{100'000}, size_t{3'000'000}, size_t{16} << 20}) {
    INFO(size);
    release_copy_memory();
    const void* const first = memory_for_copy(size).get();  // is let go of at once
    const c10::DataPtr again = memory_for_copy(size);
    CHECK(again.get() == first);
    CHECK(memory_for_copy(size / 2).get() != first);
  }
  release_copy_memory();
}

TEST_CASE("Memory for copies may be resized by operators", "[capture]") {
  const at::Tensor like = at::ones({3, 4}).t();
  at::Tensor tensor = private_empty_like(like, at::kDouble);
  CHECK(tensor.strides() == like.strides());
  CHECK(tensor.scalar_type() == at::kDouble);
  tensor.fill_(2);
  tensor.resize_({50, 50}).fill_(3);
  CHECK(tensor.sum().item<double>() == 7500);
}

// A mount whose server is gone: no call of the system returns until it is back.
TEST_CASE("a disk that takes nothing ends the capture; the program and its end go on", "[capture]") {
  const QuietLog quiet;
  std::promise<void> server_is_back;
  const std::shared_future<void> mount = server_is_back.get_future().share();
  const auto record = [] { return Record{{}, [](const Packed&) { return SavedCall(); }, 1 << 10}; };
  {
    RecordWriter writer(
        [mount]() -> std::unique_ptr<CallStore> {
          mount.wait();
          throw Error("the mount was taken away");
        },
        /*max_pending_bytes=*/8 << 10, DiskBudget(UINT64_MAX, 0), std::chrono::milliseconds(100));
    uint64_t taken = 0;
    while (writer.submit(record()) && taken < 100) ++taken;
    CHECK(taken > 0);
    CHECK(taken < 10);  // then it waited for room
    CHECK(writer.is_closed());
    CHECK(!writer.submit(record()));
    writer.flush();
    const RecordWriter::Progress progress = writer.progress();
    CHECK(progress.failure.find("took nothing for") != std::string::npos);
    CHECK(progress.lost >= taken);
    CHECK(progress.records == 0);
  }
  server_is_back.set_value();
}

TEST_CASE("a slow disk that takes a record now and then is waited for", "[capture]") {
  const TemporaryFolder folder;
  const auto slow = [](const Packed&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    SavedCall call;
    call.name = "aten::relu";
    return call;
  };
  // There is room again after more than two time limits.
  RecordWriter writer([&] { return CallStore::in_folder(folder.path()); }, /*max_pending_bytes=*/64 << 10,
                      DiskBudget(UINT64_MAX, 0), std::chrono::milliseconds(200));
  for (int i = 0; i < 22; ++i) CHECK(writer.submit({{}, slow, 1 << 10}));
  writer.flush();
  CHECK(writer.progress().failure.empty());
  CHECK(writer.progress().lost == 0);
  CHECK(writer.progress().records == 22);
}
