// The only writer and the only reader of saved calls: all that is written is read again.
#include "calls/saved_call.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include <string>

#include "base/error.h"
#include "calls/call_store.h"
#include "catch.h"
#include "pth_testing.h"
#include "quiet_log.h"
#include "temporary_folder.h"

namespace op_tools {
namespace {

using test::QuietLog;
using test::TemporaryFolder;
using testing::same_value;

TensorMeta tensor_meta(at::DimVector shape, at::DimVector stride, const char* device) {
  TensorMeta meta;
  meta.shape = std::move(shape);
  meta.stride = std::move(stride);
  meta.dtype = at::kBFloat16;
  meta.device = c10::Device(device);
  meta.requires_grad = true;
  meta.is_leaf = false;
  meta.storage = 1;
  meta.offset = 5;
  return meta;
}

// A value in every field.
SavedCall full_call() {
  SavedCall call;
  call.name = "torch.Tensor.mul_";
  call.id = 12;
  const at::Tensor x = at::rand({3}), y = at::rand({2, 2});
  call.args = make_tuple({x, y, 2});
  call.kwargs = make_dict({{"out", at::rand({1})}});
  call.aten = make_tuple({"aten::mul_.Tensor", make_tuple({x, y})});
  call.rng = make_dict({{"cpu", at::ones({4}, at::kByte)}});
  call.restrided = {{1, {100, 1}}};
  call.output = SavedOutput{at::rand({3}), {{0, Value(at::rand({3}))}}, {{0, {50}}}, {}};
  call.backward = {{make_tuple({at::rand({3})}), make_tuple({at::rand({3}), None()})},
                   {make_tuple({at::rand({3})}), make_tuple({None(), at::rand({2, 2})})}};
  CallMeta& meta = call.meta;
  call.has_meta = true;
  meta.name = call.name;
  meta.level = Level::kTorch;
  meta.id = call.id;
  meta.step = 3;
  meta.rank = 2;
  meta.schema = "aten::mul_(Tensor self) -> Tensor";
  meta.aten_name = "aten::mul_.Tensor";
  meta.error = "it raised";
  meta.identity = true;
  meta.random = true;
  meta.inputs = {tensor_meta({2, 3}, {30, 1}, "cuda:1"), TensorMeta()};
  meta.outputs = {tensor_meta({7}, {1}, "cpu")};
  meta.unsupported = {{"args[2]", "function", "a callable has no form in a file"}};
  meta.state.grad_enabled = false;
  meta.state.inference_mode = true;
  meta.state.autocast.push_back({c10::kCPU, at::kHalf});
  meta.state.autocast_cache = false;
  meta.state.num_threads = 3;
  meta.state.process = {at::kDouble, true, at::Float32MatmulPrecision::MEDIUM, false};
  meta.stack = {"train.py:3 step", "train.py:9 <module>"};
  meta.module = "ResNet.layer3.0.conv1";
  meta.time = 1754000000.25;
  return call;
}

void check_same(const SavedCall& read, const SavedCall& written) {
  CHECK(read.name == written.name);
  CHECK(read.id == written.id);
  CHECK(same_value(read.args, written.args));
  CHECK(same_value(read.kwargs, written.kwargs));
  CHECK(same_value(read.aten, written.aten));
  CHECK(same_value(read.rng, written.rng));
  CHECK(read.restrided == written.restrided);
  REQUIRE(read.output);
  CHECK(same_value(read.output->result, written.output->result));
  REQUIRE(read.output->mutated.size() == 1);
  CHECK(read.output->mutated[0].first == written.output->mutated[0].first);
  CHECK(same_value(read.output->mutated[0].second, written.output->mutated[0].second));
  CHECK(read.output->restrided == written.output->restrided);
  REQUIRE(read.backward.size() == written.backward.size());
  for (size_t i = 0; i < read.backward.size(); ++i) {
    CHECK(same_value(read.backward[i].grad_outputs, written.backward[i].grad_outputs));
    CHECK(same_value(read.backward[i].grad_inputs, written.backward[i].grad_inputs));
  }
  CHECK(read.meta == written.meta);
  CHECK(read.cut_off.empty());
  CHECK(read.is_ours);
}

TEST_CASE("every field of a saved call is read as it was written", "[calls]") {
  const QuietLog quiet;
  for (const auto format : {CaptureFormat::kFolders, CaptureFormat::kContainer}) {
    const TemporaryFolder folder;
    const auto store = CallStore::create(format, folder.path(), 0);
    const SavedCall written = full_call();
    const std::string path = write_call(*store, written);
    store->flush();
    const SavedCall read = read_call(*open_call(path));
    check_same(read, written);

    // Once more, by the export: meta.json is the same text.
    std::vector<std::string> problems;
    REQUIRE(export_calls(store->root(), folder / "out", &problems) == 1);
    CHECK(problems.empty());
    const SavedCall exported = read_call(*find_calls(folder / "out").calls.at(0));
    check_same(exported, written);
    CHECK(exported.meta_text == read.meta_text);
  }
}

TEST_CASE("a backward pass is added to a call that is in its files", "[calls]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  SavedCall call = full_call();
  SavedCall later;
  later.name = call.name;
  later.id = call.id;
  later.backward = {call.backward[1]};
  later.first_pass = 1;
  call.backward.pop_back();
  const std::string path = write_call(*store, call);
  write_call(*store, later);
  check_same(read_call(*open_call(path)), [&] {
    SavedCall both = call;
    both.backward.push_back(later.backward[0]);
    return both;
  }());
}

TEST_CASE("sides of a comparison are exported side by side, parts that are missing are named", "[calls]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  SavedCall call = full_call();
  for (const char* side : {"device", "cpu"}) write_call(*store, call, side);
  call.has_meta = false;
  call.id = 13;
  write_call(*store, call);
  std::vector<std::string> problems;
  CHECK(export_calls(store->root(), folder / "out", &problems) == 3);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], Catch::Contains("13") && Catch::Contains("meta.json is missing"));
  for (const char* side : {"12/device", "12/cpu", "13"}) {
    CHECK(read_input(*open_call((folder / "out/torch.Tensor.mul_/") + side)).meta.name ==
          (std::string(side) == "13" ? "" : call.name));
  }
}

TEST_CASE("a fact missing in meta.json is not known", "[calls]") {
  const CallMeta meta = CallMeta::from_json("{}");
  CallMeta expected;
  expected.level = Level::kTorch;  // as ditorch saves
  CHECK(meta == expected);
  CHECK(meta.state.grad_enabled == std::nullopt);
  CHECK_THROWS_WITH(CallMeta::from_json(R"({"format": 2})"), Catch::Contains("newer op_tools"));
  CHECK_THROWS_WITH(CallMeta::from_json("[]"), Catch::Contains("not a JSON object"));
  CHECK_THROWS_WITH(CallMeta::from_json(R"({"state": {"float32_matmul_precision": "some"}})"),
                    Catch::Contains("highest, high, medium"));
}

}  // namespace
}  // namespace op_tools
