#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "catch.h"
#include "pth/pth.h"
#include "pth/zip.h"
#include "pth_testing.h"

namespace op_tools {
namespace {

using testing::encode;
using testing::make_archive;
using testing::same_value;

Value read(const std::string& bytes) {
  return read_pth(bytes, "test.pth");
}
Value round_trip(const Value& value) {
  return read(encode(value));
}
at::Tensor tensor_at(const Value& value, size_t index) {
  return flatten_tensors(value).at(index);
}

// The message of the Error that reading `bytes` ends in.
std::string refusal(const std::string& bytes) {
  try {
    return "was read as " + describe(read(bytes));
  } catch (const Error& error) {
    return error.what();
  }
}

// --- pickles by hand ---
template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string text(const std::string& value) {
  return "X" + raw(static_cast<uint32_t>(value.size())) + value;
}
std::string number(int64_t value) {
  return std::string("\x8a\x08", 2) + raw(value);
}
std::string pickled_integers(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const int64_t value : values) out += number(value);
  return out + "t";
}
std::string pickle(const std::string& body) {
  return "\x80\x02" + body + ".";
}

struct TensorPickle {
  int64_t numel = 4, offset = 0;
  std::vector<int64_t> sizes{4}, strides{1};
  std::string key = "0", storage = "FloatStorage";
  bool requires_grad = false;

  std::string body() const {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + storage + "\n" + text(key) +
           text("cpu") + number(numel) + "tQ" + number(offset) + pickled_integers(sizes) + pickled_integers(strides) +
           (requires_grad ? "\x88" : "\x89") + "ccollections\nOrderedDict\n)RtR";
  }
  std::string file() const { return make_archive(pickle(body()), {{"data/0", std::string(16, '\1')}}); }
};

TEST_CASE("Every kind of value comes back as it was written", "[pth]") {
  for (const auto& sample : testing::sample_values()) {
    const Value back = round_trip(sample);
    INFO(describe(sample));
    INFO(describe(back));
    CHECK(same_value(back, sample));
  }
  // The only exception: a named tuple is a plain tuple in a file.
  const auto items = std::make_shared<const Values>(Values{1, 2});
  CHECK(same_value(round_trip(NamedTuple{items, "torch.return_types.max"}), Tuple{items}));
}

TEST_CASE("A text that is no UTF-8 comes back as bytes", "[pth]") {
  CHECK(same_value(round_trip(std::string("\xff\x80")), Bytes{"\xff\x80"}));
  CHECK(same_value(round_trip(std::string("\xed\xb2\x80")), std::string("\xed\xb2\x80")));
}

TEST_CASE("Tensors that shared memory share it after reading, and the same tensor is the same object", "[pth]") {
  const auto a = at::arange(16, at::kFloat);
  const Value back = round_trip(make_tuple({a, a.slice(0, 4, 8), a, a.view(at::kInt)}));
  CHECK(tensor_at(back, 0).is_same(tensor_at(back, 2)));
  CHECK(tensor_at(back, 0).is_alias_of(tensor_at(back, 1)));
  CHECK(tensor_at(back, 0).is_alias_of(tensor_at(back, 3)));
  tensor_at(back, 1).fill_(7);
  CHECK(tensor_at(back, 0)[4].item<float>() == 7);
}

TEST_CASE("Only the bytes that the tensors show are written", "[pth]") {
  const auto large = at::zeros({1 << 20});
  CHECK(encode(large.slice(0, 1000, 1010)).size() < 2000);
  CHECK(encode(make_tuple({large.slice(0, 1000, 1010), large.slice(0, 1020, 1030)})).size() < 2000);
  CHECK(encode(make_tuple({large.slice(0, 0, 10), large.slice(0, -10)})).size() > large.nbytes());
}

TEST_CASE("Large tensors are not copied for writing, and the CRC covers all pieces", "[pth]") {
  const auto large = at::arange(1 << 16, at::kFloat);
  const Value value = make_tuple({large, at::arange(3)});
  const EncodedPth encoded(value);
  const auto& pieces = encoded.pieces();
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[1].data == static_cast<const char*>(large.const_data_ptr()));
  const std::string bytes = encode(value);
  CHECK(bytes.size() == encoded.size());
  CHECK(crc32_of(bytes) == encoded.crc());
  EncodedPth moved = EncodedPth(at::arange(5000));
  moved = EncodedPth(value);
  CHECK(moved.crc() == encoded.crc());
}

TEST_CASE("Writing refuses a value without a form in a file and says which tensor", "[pth]") {
  CHECK_THROWS_WITH(EncodedPth(at::empty({2}, at::kMeta)),
                    Catch::Contains("meta") && Catch::Contains("copy it to the CPU first"));
  auto shrunk = at::ones({4});
  shrunk.storage().set_nbytes(4);
  CHECK_THROWS_WITH(EncodedPth(shrunk), Catch::Contains("shows more memory than its storage has"));
  CHECK_THROWS_AS(EncodedPth(at::ones({4}).to_mkldnn()), Error);
  Value deep = 1;
  for (int i = 0; i < kMaxPthDepth; ++i) deep = make_list({deep});
  CHECK_THROWS_AS(EncodedPth(deep), Error);
}

TEST_CASE("Whatever depth is written can be read", "[pth]") {
  Value deep = Slice{std::make_shared<const Values>(Values{1, 2, 3})};
  size_t depth = 0;
  std::string last;
  try {
    for (;; ++depth) {
      last = encode(deep);
      deep = make_tuple({deep});
    }
  } catch (const Error&) {
  }
  CHECK(depth > 200);
  CHECK_NOTHROW(read(last));
}

TEST_CASE("A file that Python wrote reads with its kinds", "[pth]") {
  const std::filesystem::path folder = std::filesystem::path(OP_TOOLS_TEST_DATA) / "ditorch_captures";
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".pth") continue;
    const Value value = read_pth(entry.path().string());
    REQUIRE(find_key(value, "name") != nullptr);
    CHECK(find_key(value, "args") != nullptr);
    CHECK(find_key(value, "kwargs") != nullptr);
    if (entry.path().filename() == "output.pth" &&
        *find_key(value, "name")->get_if<std::string>() == "torch.Tensor.sort") {
      const auto* sorted = (*sequence_items(*find_key(value, "args")))[0].get_if<NamedTuple>();
      REQUIRE(sorted != nullptr);
      CHECK(sorted->type == "torch.return_types.sort");
      CHECK(sorted->items->size() == 2);
    }
    ++files;
  }
  CHECK(files > 50);
}

TEST_CASE("Large files are mapped: written on in place, they stay as they are", "[pth]") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("op_tools_test_" + std::to_string(::getpid()) + ".pth")).string();
  const auto large = at::arange(1 << 20, at::kFloat);
  std::ofstream(path, std::ios::binary) << encode(make_tuple({large, large.slice(0, 5)}));
  const Value first = read_pth(path);
  CHECK(tensor_at(first, 0).equal(large));
  CHECK(reinterpret_cast<uintptr_t>(tensor_at(first, 0).const_data_ptr()) % 64 == 0);
  tensor_at(first, 0).fill_(1);
  CHECK(tensor_at(first, 1)[0].item<float>() == 1);
  CHECK(tensor_at(read_pth(path), 0).equal(large));
  tensor_at(first, 0).resize_({2 << 20});
  std::filesystem::remove(path);
  CHECK(tensor_at(first, 0)[1].item<float>() == 1);
}

TEST_CASE("A file that cannot be opened is an Error with path and reason", "[pth]") {
  CHECK_THROWS_WITH(read_pth("/nowhere/input.pth"),
                    Catch::Contains("/nowhere/input.pth") && Catch::Contains("No such file"));
  CHECK_THROWS_WITH(read_pth("/"), Catch::Contains("Is a directory"));
  CHECK_THROWS_WITH(read_pth("/dev/null"), Catch::Contains("no ordinary file"));
  CHECK(refusal("") == "test.pth: no .pth file of torch.save (it does not start as a zip archive does)");
  CHECK_THAT(refusal("PK"), Catch::Contains("too short"));
  CHECK_THAT(refusal(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15)),
             Catch::Contains("old format"));
}

TEST_CASE("Damaged and foreign zips are refused with the reason", "[pth]") {
  const std::string good = TensorPickle().file();
  REQUIRE(same_value(read(good), read(good)));
  CHECK_THAT(refusal(good.substr(0, good.size() - 1)), Catch::Contains("cut off"));
  std::string flipped = good;
  flipped[flipped.find(std::string(16, '\1')) + 3] ^= 4;
  CHECK_THAT(refusal(flipped), Catch::Contains("archive/data/0' is damaged"));
  CHECK_THAT(refusal(make_archive(pickle("N"), {{"data/0", "a"}, {"data/0", "a"}})), Catch::Contains("twice"));
  CHECK_THAT(refusal(make_archive(pickle("N"), {{"byteorder", "big"}})), Catch::Contains("big-endian"));
  CHECK_THAT(refusal(make_archive(pickle("N"), {{"constants.pkl", "x"}})), Catch::Contains("TorchScript"));
  CHECK_THAT(refusal(make_archive(TensorPickle().body())), Catch::Contains("does not start as a pickle"));
  CHECK_THAT(refusal(make_archive(pickle(TensorPickle().body()))), Catch::Contains("archive/data/0' is missing"));
  // Method "deflated" in the directory's entry of data.pkl.
  std::string deflated = good;
  deflated[deflated.rfind("archive/data.pkl") - 36] = 8;
  CHECK_THAT(refusal(deflated), Catch::Contains("compressed"));
  std::string encrypted = good;
  encrypted[encrypted.rfind("archive/data.pkl") - 38] = 1;
  CHECK_THAT(refusal(encrypted), Catch::Contains("encrypted"));
}

TEST_CASE("Records that lie on each other cannot make a small file large", "[pth]") {
  std::string bytes;
  ZipDirectory directory;
  std::string body = "(";
  const std::string payload(1 << 16, '\1');
  // One payload, and a thousand directory entries that all point to it under the only name that its
  // header bears: refused as duplicates. Nested instead: each local header stands in the payload of
  // its predecessor.
  std::string nested = payload;
  for (int i = 0; i < 50; ++i) {
    std::string header;
    const std::string name = "archive/data/" + std::to_string(i);
    append_local_header(header, name, nested.size(), crc32_of(nested), 0);
    TensorPickle tensor;
    tensor.key = std::to_string(i);
    body += tensor.body();
    nested = header + nested;
  }
  const uint64_t total = nested.size();
  const std::string data = pickle(body + "t");
  directory.add("archive/data.pkl", data.size(), crc32_of(data), total);
  uint64_t position = 0;
  for (int i = 49; i >= 0; --i) {
    const std::string name = "archive/data/" + std::to_string(i);
    std::string header;
    const std::string_view rest = std::string_view(nested).substr(position);
    // The header's own size does not depend on the payload.
    append_local_header(header, name, 0, 0, 0);
    const auto inner = rest.substr(header.size());
    directory.add(name, inner.size(), crc32_of(inner), position);
    position += header.size();
  }
  bytes = nested;
  append_local_header(bytes, "archive/data.pkl", data.size(), crc32_of(data), bytes.size());
  bytes += data;
  directory.append_to(bytes, bytes.size());
  CHECK_THAT(refusal(bytes), Catch::Contains("overlap"));
}

TEST_CASE("Tensors that reach outside their storage are refused", "[pth]") {
  const auto refused = [](auto change, const char* reason) {
    TensorPickle tensor;
    change(tensor);
    CHECK_THAT(refusal(tensor.file()), Catch::Contains(reason));
  };
  using T = TensorPickle&;
  constexpr int64_t kOne = 1;
  refused([](T t) { t.sizes = {64}; }, "outside its storage");
  refused([](T t) { t.sizes = {5}; }, "outside its storage");
  refused([](T t) { t.offset = 1; }, "outside its storage");
  refused([](T t) { t.offset = -(kOne << 28); }, "outside its storage");
  refused([](T t) { t.offset = INT64_MAX; }, "outside its storage");
  refused([](T t) { t.strides = {kOne << 62}; }, "outside its storage");
  refused([](T t) { t.strides = {-1}; }, "outside its storage");
  refused([](T t) { t.sizes = {-4}; }, "negative size");
  refused([](T t) { t.sizes = {kOne << 40, kOne << 40}, t.strides = {0, 0}; }, "64 bits");
  refused([](T t) { t.sizes = {0, INT64_MAX, 3}, t.strides = {1, 1, 1}; }, "64 bits");
  refused([](T t) { t.sizes = {1, 1}; }, "2 sizes and 1 strides");
  refused([](T t) { t.sizes.assign(65, 1), t.strides.assign(65, 1); }, "64 dimensions");
  refused([](T t) { t.numel = 5; }, "fewer than data.pkl says");
  refused([](T t) { t.numel = -1; }, "fewer than data.pkl says");
  refused([](T t) { t.numel = INT64_MAX; }, "fewer than data.pkl says");
  refused([](T t) { t.key = "7"; }, "missing");
  refused([](T t) { t.key = "../data.pkl"; }, "missing");
  refused([](T t) { t.storage = "QInt8Storage"; }, "QInt8Storage");
  refused([](T t) { t.storage = "LongStorage", t.numel = 2, t.sizes = {2}, t.requires_grad = true; }, "requires grad");
  TensorPickle fits;
  fits.sizes = {2, 2}, fits.strides = {2, 1};
  CHECK(tensor_at(read(fits.file()), 0).numel() == 4);
}

TEST_CASE("No Python object is ever made: unknown globals are named", "[pth]") {
  const auto refused = [](const std::string& body) { return refusal(make_archive(pickle(body))); };
  CHECK_THAT(refused("cposix\nsystem\n" + text("true") + "\x85R"), Catch::Contains("'posix.system'"));
  CHECK_THAT(refused("c__builtin__\neval\n" + text("1") + "\x85R"), Catch::Contains("'builtins.eval'"));
  CHECK_THAT(refused("ctorch.nn.modules.linear\nLinear\n"), Catch::Contains("'torch.nn.modules.linear.Linear'"));
  CHECK_THAT(refused("cnumpy._core.multiarray\nscalar\nN\x85R"), Catch::Contains("numpy._core.multiarray.scalar"));
  CHECK_THAT(refused(text("a") + "N\x85R"), Catch::Contains("a function must be"));
  CHECK_THAT(refused("ctorch._tensor\n_rebuild_from_type_v2\n(cposix\nsystem\nN" + text("true") + "\x85NtR"),
             Catch::Contains("posix.system"));
  CHECK_THAT(refused("cos\nsystem\n" + text("x") + "\x85\x81N" + "b"), Catch::Contains("attributes"));
}

TEST_CASE("Hostile pickles end in an Error, quickly and without much memory", "[pth]") {
  const auto refused = [](const std::string& body) { return refusal(make_archive(pickle(body))); };
  const auto repeat = [](const std::string& part, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += part;
    return out;
  };
  CHECK_THAT(refused(repeat("]", 1000000) + repeat("a", 999999)), Catch::Contains("deep"));
  CHECK_THAT(refused(")" + repeat("\x85", 1000000)), Catch::Contains("deep"));
  CHECK_THAT(refused("]" + repeat("}", 300) + repeat(std::string("K\1s", 3), 0) + repeat("\x85", 300)),
             Catch::Contains("deep"));
  // Each tuple holds its predecessor twice: 2^60 values in 300 bytes.
  CHECK_THAT(refused("]" + repeat(std::string("q\0h\0\x86", 5), 60)), Catch::Contains("unfolds"));
  // A text, put on the stack over and over.
  CHECK_THAT(refused("(" + text(std::string(100000, 'x')) + "q" + std::string(1, '\0') +
                     repeat(std::string("h\0", 2), 100000) + "t"),
             Catch::Contains("text"));
  CHECK_THAT(refused(std::string("]q\0h\0a", 6)), Catch::Contains("lies in another"));
  CHECK_THAT(refused(std::string("]q\0\x85h\0N\x61\x86", 9)), Catch::Contains("lies in another"));
  CHECK_THAT(refused(std::string("X\xff\xff\xff\xff", 5)), Catch::Contains("cut off"));
  CHECK_THAT(refused("\x8d" + raw(~uint64_t{0})), Catch::Contains("cut off"));
  CHECK_THAT(refused("\x8b" + raw(~uint32_t{0})), Catch::Contains("cut off"));
  CHECK(same_value(read(make_archive(pickle("Nr\xff\xff\xff\xff"))), None{}));
  CHECK_THAT(refused("j" + raw(7)), Catch::Contains("memo"));
  CHECK_THAT(refused("R"), Catch::Contains("takes more from its stack"));
  CHECK_THAT(refused("(\x87"), Catch::Contains("takes more from its stack"));
  CHECK_THAT(refused("N(N\x86"), Catch::Contains("takes more from its stack"));
  CHECK_THAT(refused("t"), Catch::Contains("mark"));
  CHECK_THAT(refused("}(NNNu"), Catch::Contains("key without a value"));
  CHECK_THAT(refused("NNs"), Catch::Contains("takes more from its stack"));
  CHECK_THAT(refused("N(Ne"), Catch::Contains("no container"));
  CHECK_THAT(refused(repeat("(", 5000000)), Catch::Contains("too many marks"));
  CHECK_THAT(refused("NN"), Catch::Contains("several values"));
  CHECK_THAT(refused("N.N"), Catch::Contains("several values"));
  CHECK_THAT(refused("i"), Catch::Contains("opcode 105"));
  CHECK_THAT(refusal(make_archive("\x80\x02")), Catch::Contains("cut off"));
  CHECK_THAT(refusal(make_archive("")), Catch::Contains("cut off"));
  CHECK_THAT(refusal(make_archive("\x80\x09N.")), Catch::Contains("protocol 9"));
  // Nested types in a name, the torch.jit way.
  CHECK_THAT(
      refused("ctorch.jit._pickle\nrestore_type_tag\n(]" + text(repeat("List[", 20000) + repeat("]", 20000)) + "tR"),
      Catch::Contains("restore_type_tag"));
}

TEST_CASE("Sparse tensors with indices outside are refused", "[pth]") {
  std::string index(16, '\0');
  const auto coo = [&index](int64_t column) {
    std::memcpy(&index[8], &column, 8);
    TensorPickle indices, values;
    indices.storage = "LongStorage", indices.numel = 2, indices.sizes = {2, 1}, indices.strides = {1, 1};
    values.key = "1", values.numel = 1, values.sizes = {1};
    const std::string body = "ctorch._utils\n_rebuild_sparse_tensor\nctorch.serialization\n_get_layout\n" +
                             text("torch.sparse_coo") + "\x85R(" + indices.body() + values.body() +
                             pickled_integers({3, 3}) + "\x88t\x86R";
    return make_archive(pickle(body), {{"data/0", index}, {"data/1", std::string(4, '\1')}});
  };
  CHECK(tensor_at(read(coo(2)), 0)._nnz() == 1);
  CHECK_THAT(refusal(coo(3)), Catch::Contains("torch refuses"));
  CHECK_THAT(refusal(coo(-1)), Catch::Contains("torch refuses"));
}

TEST_CASE("Integers of every length read, and those beyond 64 bits are marked", "[pth]") {
  const auto value = [](const std::string& digits) {
    return read(make_archive(pickle("\x8a" + std::string(1, static_cast<char>(digits.size())) + digits)));
  };
  CHECK(*value("").get_if<int64_t>() == 0);
  CHECK(*value("\xff").get_if<int64_t>() == -1);
  CHECK(*value(std::string("\0\0\0\0\1", 5)).get_if<int64_t>() == int64_t{1} << 32);
  CHECK(*value(std::string("\0\0\0\0\xff", 5)).get_if<int64_t>() == -(int64_t{1} << 32));
  CHECK(*value(std::string("\1\0\0\0\0\0\0\0\0\0", 10)).get_if<int64_t>() == 1);
  CHECK(value(std::string("\xff\xff\xff\xff\xff\xff\xff\xff\0", 9)).is<Unsupported>());
  CHECK(value(std::string("\0\0\0\0\0\0\0\0\1", 9)).is<Unsupported>());
}

TEST_CASE("Tagged dicts that are none of ours stay dicts", "[pth]") {
  CHECK(round_trip(make_dict({{"__slice__", 1}})).is<Dict>());
  CHECK(round_trip(make_dict({{"__memory_format__", "none"}})).is<Dict>());
  CHECK(round_trip(make_dict({{"__generator__", make_tuple({c10::Device("cpu"), 1})}})).is<Dict>());
  CHECK(round_trip(make_dict({{"__slice__", make_tuple({1, 2, 3})}, {"x", 1}})).is<Dict>());
}

TEST_CASE("A device of a backend that is not loaded reads as PrivateUse1", "[pth]") {
  const auto device = [](const std::string& name) {
    return refusal(make_archive(pickle("ctorch\ndevice\n" + text(name) + "\x85R")));
  };
  CHECK_THAT(device("npu:3"), Catch::Contains("privateuseone:3"));
  CHECK_THAT(device("cuda:1"), Catch::Contains("cuda:1"));
  CHECK_THAT(device("NPU;rm"), Catch::Contains("torch does not know"));
  CHECK_THAT(device("npu:x"), Catch::Contains("torch does not know"));
}

TEST_CASE("A damaged file is refused or reads as before, never as something else", "[pth]") {
  std::mt19937_64 random(20240806);
  size_t refused = 0;
  const auto samples = testing::sample_values();
  for (const auto& sample : samples) {
    const std::string good = encode(sample);
    for (int i = 0; i < 250; ++i) {
      const std::string mutant = testing::mutate(good, random, /*repair=*/i % 5 == 0);
      try {
        const Value value = read(mutant);
        if (i % 5 != 0) REQUIRE(same_value(value, sample));
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace op_tools
