#include "run_op_from_data/replay.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "calls/call_store.h"
#include "catch.h"
#include "compare/call_judge.h"
#include "compare/rerun/variant_inputs.h"
#include "hooks/scope.h"
#include "recording_hook.h"
#include "run_op_from_data/resolve.h"
#include "scoped_variable.h"
#include "temporary_folder.h"

using namespace op_tools;
using nlohmann::json;
using op_tools::replay::BoundCall;
using op_tools::replay::Resolver;
using op_tools::test::ScopedVariable;
using op_tools::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

using Pairs = std::vector<std::pair<Value, Value>>;

// Stores calls as the capture tool would.
class Store {
 public:
  Store() : store_(CallStore::create(CaptureFormat::kFolders, folder_.path(), 0)) {}
  const std::string& path() const { return folder_.path(); }
  std::string operator/(const std::string& name) const { return folder_ / name; }

  struct Call {
    CallStore& store;
    CallKey key;
    Call& input(Values args, Pairs kwargs = {}, Pairs more = {}) {
      return write(CallFile::kInput, make_tuple(std::move(args)), std::move(kwargs), std::move(more));
    }
    Call& output(Value result, Pairs more = {}) {
      return write(CallFile::kOutput, make_tuple({std::move(result)}), {}, std::move(more));
    }
    Call& gradients(Values outputs, Values inputs, uint32_t pass = 0) {
      write(CallFile::kGradInputs, make_tuple(std::move(inputs)), {}, {}, pass);
      return write(CallFile::kGradOutputs, make_tuple(std::move(outputs)), {}, {}, pass);
    }
    Call& meta(const std::string& text) {
      store.write_text(key, CallFile::kMeta, 0, text);
      return *this;
    }
    Call& write(CallFile file, Value args, Pairs kwargs, Pairs more, uint32_t pass = 0) {
      Pairs items{{"name", key.op},
                  {"args", std::move(args)},
                  {"kwargs", make_dict(std::move(kwargs))},
                  {"id", static_cast<int64_t>(key.id)}};
      items.insert(items.end(), more.begin(), more.end());
      last_path = store.write(key, file, pass, make_dict(std::move(items)));
      return *this;
    }
    std::string last_path;
  };
  // With a meta.json, without which a call counts as cut off.
  Call call(const std::string& name) {
    Call call{*store_, {name, ++id_}, ""};
    return call.meta("{}");
  }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<CallStore> store_;
  uint64_t id_ = 0;
};

// Everything a stream's file descriptor gets while this lives.
class CapturedStream {
 public:
  explicit CapturedStream(int descriptor) : descriptor_(descriptor), saved_(dup(descriptor)), file_(std::tmpfile()) {
    std::cout.flush();
    std::fflush(nullptr);
    dup2(fileno(file_), descriptor_);
  }
  ~CapturedStream() { restore(); }
  std::string text() {
    restore();
    std::string result;
    std::rewind(file_);
    char buffer[4096];
    for (size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), file_)) > 0;) result.append(buffer, got);
    return result;
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    std::cout.flush();
    std::fflush(nullptr);
    dup2(saved_, descriptor_);
    close(saved_);
    saved_ = -1;
  }
  int descriptor_;
  int saved_;
  std::FILE* file_;
};

struct Outcome {
  int status = -1;
  json report;
  std::string out, err;
  const json& call(size_t index) const { return report["calls"][index]; }
};

Outcome replay_paths(std::vector<std::string> arguments, replay::PythonCaller* caller = nullptr) {
  const TemporaryFolder folder;
  arguments.insert(arguments.end(), {"--json", folder / "report.json"});
  Outcome outcome;
  {
    CapturedStream out(STDOUT_FILENO), err(STDERR_FILENO);
    outcome.status = replay::run_command(arguments, caller);
    outcome.err = err.text();
    outcome.out = out.text();
  }
  if (std::ifstream file(folder / "report.json"); file) outcome.report = json::parse(file);
  INFO(outcome.out << outcome.err);
  return outcome;
}

Outcome check(const std::string& path, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {path, "--acc_check"});
  return replay_paths(more);
}

at::Tensor ramp(std::vector<int64_t> sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kFloat) * 0.5 - 3).reshape(sizes);
}

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.clone().requires_grad_(true);
}

Value run_call(const std::string& name, Values args, Pairs kwargs, std::string* target) {
  static const Resolver resolver;
  BoundCall call = resolver.bind(name, make_tuple(std::move(args)), make_dict(std::move(kwargs)));
  *target = call.target;
  return call.run();
}

}  // namespace

TEST_CASE("Calls as Python writes them find their operator and arguments", "[replay][resolve]") {
  const at::Tensor x = ramp({2, 6});
  const at::Tensor image = ramp({1, 1, 4, 4});
  struct Row {
    std::string name;
    Values args;
    Pairs kwargs;
    std::string target;
    std::vector<int64_t> sizes;
  };
  const std::vector<Row> rows{
      {"aten::add.Tensor", {x, x}, {{"alpha", 2}}, "aten::add.Tensor", {2, 6}},
      {"torch.add", {x, 2}, {}, "aten::add.Tensor", {2, 6}},
      {"torch.add", {}, {{"input", x}, {"other", x}}, "aten::add.Tensor", {2, 6}},
      {"torch.Tensor.__radd__", {x, 2.5}, {}, "aten::add.Tensor", {2, 6}},
      {"torch.Tensor.__rpow__", {x, 2}, {}, "aten::pow.Scalar", {2, 6}},
      {"torch.Tensor.__matmul__", {x, x.t()}, {}, "aten::matmul", {2, 2}},
      {"torch.Tensor.pow", {x, 2}, {}, "aten::pow.Tensor_Scalar", {2, 6}},
      {"torch.Tensor.sum", {x}, {}, "aten::sum", {}},
      {"torch.sum", {x}, {{"axis", 1}, {"keepdims", true}}, "aten::sum.dim_IntList", {2, 1}},
      {"torch.Tensor.sum", {x, 0}, {}, "aten::sum.dim_IntList", {6}},
      {"torch.Tensor.view", {x, 3, 4}, {}, "aten::view", {3, 4}},
      {"torch.Tensor.view", {x, make_tuple({3, -1})}, {}, "aten::view", {3, 4}},
      {"torch.Tensor.permute", {x, 1, 0}, {}, "aten::permute", {6, 2}},
      {"torch.Tensor.expand", {ramp({1, 3}), 4, 3}, {}, "aten::expand", {4, 3}},
      {"torch.zeros", {2, 3}, {{"dtype", at::kLong}}, "aten::zeros", {2, 3}},
      {"torch.Tensor.split", {x, 2}, {{"dim", 1}}, "aten::split.Tensor", {2, 2}},
      {"torch.functional.split", {x, make_list({1, 5})}, {{"dim", 1}}, "aten::split_with_sizes", {2, 1}},
      {"torch.Tensor.max", {x}, {}, "aten::max", {}},
      {"torch.max", {x, 1}, {}, "aten::max.dim", {2}},
      {"torch.max", {x, x}, {}, "aten::max.other", {2, 6}},
      {"torch.Tensor.clamp", {x}, {{"min", 0}}, "aten::clamp", {2, 6}},
      {"torch.where", {x > 0, x, 0.0}, {}, "aten::where.ScalarOther", {2, 6}},
      {"torch.Tensor.where", {x, x > 0, x}, {}, "aten::where.self", {2, 6}},
      {"torch.Tensor.to", {x, at::kHalf}, {}, "aten::to.dtype", {2, 6}},
      {"torch.Tensor.to", {x, "cpu"}, {}, "aten::to.dtype_layout", {2, 6}},
      {"torch.Tensor.to", {x, x.to(at::kDouble)}, {}, "aten::to.other", {2, 6}},
      {"torch.Tensor.bfloat16", {x}, {}, "aten::to.dtype", {2, 6}},
      {"torch.Tensor.T.__get__", {x}, {}, "aten::numpy_T", {6, 2}},
      {"torch.linalg.norm", {x}, {}, "aten::linalg_norm", {}},
      {"torch.functional.norm", {x}, {{"dim", 1}}, "aten::linalg_vector_norm", {2}},
      {"torch.fft.fft", {x}, {}, "aten::fft_fft", {2, 6}},
      {"aten.add.Tensor", {x, x}, {}, "aten::add.Tensor", {2, 6}},
      {"torch.ops.aten.neg.default", {x}, {}, "aten::neg", {2, 6}},
      {"torch.functional.einsum", {"ij,kj->ik", x, x}, {}, "aten::einsum", {2, 2}},
      {"torch.nn.functional.softmax", {x}, {{"dim", 1}}, "aten::softmax.int", {2, 6}},
      {"torch.nn.functional.relu", {x}, {{"inplace", false}}, "aten::relu", {2, 6}},
      {"torch.nn.functional.layer_norm", {x, make_tuple({6})}, {}, "aten::layer_norm", {2, 6}},
      {"torch.nn.functional.embedding", {at::ones({3}, at::kLong), x, 1}, {}, "aten::embedding", {3, 6}},
      {"torch.nn.functional.max_pool2d",
       {image, 2},
       {{"return_indices", true}},
       "aten::max_pool2d_with_indices",
       {1, 1, 2, 2}},
      {"torch.nn.functional.mse_loss", {x, x}, {{"reduction", "none"}}, "aten::mse_loss", {2, 6}},
      {"torch.nn.functional.unfold", {image, 2}, {}, "aten::im2col", {1, 4, 9}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    std::string target;
    const Value result = run_call(row.name, row.args, row.kwargs, &target);
    CHECK(target == row.target);
    CHECK(flatten_tensors(result).at(0).sizes().vec() == row.sizes);
  }
}

TEST_CASE("Indexing has Python's meaning", "[replay][resolve]") {
  const at::Tensor x = ramp({4, 5});
  const Value all = Slice{std::make_shared<Values>(Values{None{}, None{}, None{}})};
  const Value middle = Slice{std::make_shared<Values>(Values{1, 3, None{}})};
  std::string target;
  const auto sizes = [&](Value index) {
    return flatten_tensors(run_call("torch.Tensor.__getitem__", {x, std::move(index)}, {}, &target))
        .at(0)
        .sizes()
        .vec();
  };
  CHECK(sizes(1) == std::vector<int64_t>{5});
  CHECK(sizes(-1) == std::vector<int64_t>{5});
  CHECK(sizes(middle) == std::vector<int64_t>{2, 5});
  CHECK(sizes(make_tuple({middle, Ellipsis{}, 0})) == std::vector<int64_t>{2});
  CHECK(sizes(make_tuple({None{}, all, 2})) == std::vector<int64_t>{1, 4});
  CHECK(sizes(make_list({0, 2, 2})) == std::vector<int64_t>{3, 5});
  CHECK(sizes(make_tuple({make_list({0, 1}), make_list({2, 3})})) == std::vector<int64_t>{2});
  CHECK(sizes(make_list({true, false, true, false})) == std::vector<int64_t>{2, 5});
  CHECK(sizes(x > 100) == std::vector<int64_t>{0});
  CHECK(sizes(true) == std::vector<int64_t>{1, 4, 5});

  const at::Tensor written = x.clone();
  run_call("torch.Tensor.__setitem__", {written, make_tuple({all, 1}), 7}, {}, &target);
  CHECK(written.select(1, 1).eq(7).all().item<bool>());
  run_call("torch.Tensor.__setitem__", {written, x < 0, 0.0}, {}, &target);
  CHECK(written.ge(0).all().item<bool>());
}

TEST_CASE("A function without an operator is reported as Python's", "[replay][resolve]") {
  std::string target;
  for (const char* name : {"torch.nn.functional.interpolate", "torch.no_such_function", "torch.Tensor.numpy",
                           "torch.nn.functional.max_unpool2d"}) {
    INFO(name);
    CHECK_THROWS_WITH(run_call(name, {ramp({2})}, {}, &target), Catch::Contains("exists in Python only"));
  }
  CHECK_THROWS_WITH(run_call("torch.add", {ramp({2})}, {}, &target), Catch::Contains("'other' is missing"));
  CHECK_THROWS_WITH(run_call("nolib::op", {}, {}, &target), Catch::Contains("nolib::op"));
  CHECK_THROWS_WITH(run_call("aten::from_file", {"x"}, {}, &target), Catch::Contains("not replayed"));
}

TEST_CASE("Captures of ditorch replay with equal outputs and last-node gradients", "[replay]") {
  const Outcome outcome = check(std::string(OP_TOOLS_TEST_DATA) + "/ditorch_captures");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.status == 0);
  CHECK(outcome.report["summary"]["ran"] == 17);
  CHECK(outcome.report["summary"]["agrees"] == 17);
  size_t gradients = 0;
  for (const json& call : outcome.report["calls"]) {
    for (const json& check : call["checks"])
      gradients += check["what"].get<std::string>().find("grad") != std::string::npos;
  }
  CHECK(gradients >= 14);
}

namespace {

// Saves x / y with its gradients, and gives x and y.
std::pair<at::Tensor, at::Tensor> save_division(Store& store) {
  const at::Tensor x = leaf(ramp({2, 3})), y = leaf(ramp({2, 3}) + 7);
  store.call("torch.Tensor.div")
      .input({x, y})
      .output(x.detach() / y.detach())
      .gradients({at::ones({2, 3})}, {1 / y.detach(), -x.detach() / (y.detach() * y.detach())});
  return {x, y};
}

}  // namespace

TEST_CASE("A call agrees with its saved results, gradients included", "[replay]") {
  Store store;
  save_division(store);
  const Outcome outcome = check(store.path(), {"--sync_time_measure", "--run_times", "2"});
  CHECK(outcome.status == 0);
  CHECK(outcome.call(0)["status"] == "agrees");
  CHECK(outcome.call(0)["checks"].size() == 3);
  CHECK(outcome.call(0)["forward_ms"].size() == 2);
  CHECK(outcome.call(0)["backward_ms"].size() == 2);
  // The lines users know, to the column.
  CHECK_THAT(outcome.err, Catch::Contains("OpAutoCompareHook: torch.Tensor.div                                   "
                                          "allclose: True    max_diff:          0.000000000"));
  CHECK_THAT(outcome.err, Catch::Contains("OpAutoCompareHook: torch.Tensor.div 1th input grad                    "
                                          "allclose: True    max_diff:          0.0000000"));
  CHECK_THAT(outcome.err, Catch::Contains("SyncExecuteTimer: torch.Tensor.div forward  elapsed "));
  CHECK_THAT(outcome.err, Catch::Contains("SyncExecuteTimer: torch.Tensor.div backward elapsed "));
  CHECK_THAT(outcome.out, Catch::Contains("1 ran, 1 agree"));

  const ScopedVariable compat("OP_TOOLS_COMPAT", "ditorch");
  CHECK_THAT(replay_paths({store.path(), "--sync_time_measure"}).err, Catch::Contains("forward  elasped "));
  CHECK(replay_paths({store.path(), "--only_run_forward"}).call(0).count("backward_ms") == 0);
}

TEST_CASE("A difference is exit status 1, with the worst element named", "[replay]") {
  Store store;
  const at::Tensor x = ramp({2, 3});
  at::Tensor wrong = x * 2;
  wrong[1][2] += 0.25;
  store.call("torch.Tensor.mul").input({x, 2}).output(wrong);
  store.call("torch.Tensor.neg").input({x}).output(ramp({3, 2}));
  const Outcome outcome = check(store.path());
  CHECK(outcome.status == 1);
  CHECK(outcome.report["summary"]["differs"] == 2);
  CHECK(outcome.call(0)["checks"][0]["worst_index"] == json::array({1, 2}));
  CHECK(outcome.call(0)["checks"][0]["max_abs"] == 0.25);
  CHECK_THAT(outcome.out, Catch::Contains("Differ (") && Catch::Contains("torch.Tensor.mul"));
  CHECK_THAT(outcome.out, Catch::Contains("shape [2, 3], expected [3, 2]"));

  const ScopedVariable tolerance("MUL_AUTOCOMPARE_ERROR_TOLERANCE", "1,0");
  CHECK(check(store.path(), {"--filter", "torch.Tensor.mul"}).status == 0);
}

TEST_CASE("In-place calls replay on inputs that require grad, fresh each time", "[replay]") {
  Store store;
  const at::Tensor x = leaf(ramp({4}));
  const at::Tensor after = x.detach() + 1;
  store.call("torch.Tensor.add_")
      .input({x, 1})
      .output(after, {{"mutated", make_dict({{0, after}})}})
      .gradients({at::ones({4})}, {at::ones({4})});
  // Two views of the same memory: a change of either changes the other.
  const at::Tensor base = ramp({6});
  const at::Tensor squares = base * base;
  store.call("torch.Tensor.mul_")
      .input({base, base.slice(0, 0, 6)})
      .output(squares, {{"mutated", make_dict({{0, squares}, {1, squares}})}});
  // The same tensor twice.
  const at::Tensor twice = leaf(ramp({3}));
  store.call("torch.Tensor.mul")
      .input({twice, twice})
      .output(twice.detach() * twice.detach())
      .gradients({at::ones({3})}, {twice.detach() * 2, twice.detach() * 2});
  const Outcome outcome = check(store.path(), {"--run_times", "3"});
  INFO(outcome.report.dump(1));
  CHECK(outcome.status == 0);
  CHECK(outcome.report["summary"]["bit_equal"] == 3);
}

TEST_CASE("The recorded aten call runs", "[replay]") {
  Store store;
  const at::Tensor x = leaf(ramp({2}));
  store.call("torch.only_python_knows")
      .input({x}, {}, {{"aten", make_tuple({"aten::mul.Tensor", make_tuple({x, 3.0})})}})
      .output(x.detach() * 3)
      .gradients({at::ones({2})}, {at::ones({2}) * 3});
  const Outcome outcome = check(store.path());
  CHECK(outcome.status == 0);
  CHECK(outcome.call(0)["operator"] == "aten::mul.Tensor");
  CHECK(outcome.call(0)["bit_equal"] == true);
}

TEST_CASE("Random calls repeat from their saved state and are not judged without it", "[replay]") {
  Store store;
  const at::Tensor x = at::ones({100});
  const at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  std::string target;
  const Value dropped = run_call("torch.nn.functional.dropout", {x, 0.5}, {}, &target);
  store.call("torch.nn.functional.dropout").input({x, 0.5}, {}, {{"rng", make_dict({{"cpu", state}})}}).output(dropped);
  store.call("torch.nn.functional.dropout").input({x, 0.5}).output(dropped);
  store.call("torch.nn.functional.dropout").input({x, 0.5, false}).output(x);
  store.call("torch.Tensor.new_empty").input({x, make_tuple({3})}).output(ramp({3}));
  const Outcome outcome = check(store.path(), {"--run_times", "2", "--jobs", "3"});
  INFO(outcome.report.dump(1));
  CHECK(outcome.status == 0);
  CHECK(outcome.call(0)["bit_equal"] == true);
  CHECK(outcome.call(1)["status"] == "not judged");
  CHECK(outcome.call(1)["checks"][0]["reason"] == "random");
  CHECK(outcome.call(2)["status"] == "agrees");
  CHECK(outcome.call(3)["checks"][0]["reason"] == "uninitialized memory");
  CHECK(check(store.path(), {"--seed", "5"}).call(0)["status"] == "not judged");
}

TEST_CASE("The program's state is that of the capture and is taken back", "[replay]") {
  Store store;
  const at::Tensor x = ramp({4, 4});
  const at::Tensor half = x.to(at::kBFloat16).matmul(x.to(at::kBFloat16));
  store.call("torch.Tensor.matmul")
      .input({x, x})
      .output(half)
      .meta(R"({"format": 1, "state": {"autocast": {"cpu": "torch.bfloat16"}, "grad_enabled": false}})");
  store.call("torch.ones")
      .input({make_tuple({2})})
      .output(at::ones({2}, at::kDouble))
      .meta(R"({"format": 1, "state": {"default_dtype": "torch.float64", "num_threads": 1, "deterministic": true}})");
  store.call("torch.ones").input({make_tuple({2})}).output(at::ones({2}));
  store.call("torch.Tensor.matmul").input({x, x}).output(x.matmul(x));
  for (const char* jobs : {"1", "4"}) {
    const Outcome outcome = check(store.path(), {"--jobs", jobs});
    INFO(outcome.report.dump(1));
    CHECK(outcome.report["summary"]["bit_equal"] == 4);
  }
  CHECK(at::ones({1}).scalar_type() == at::kFloat);
}

TEST_CASE("Strides that were stored compact are given back", "[replay]") {
  Store store;
  const at::Tensor column = ramp({3});
  store.call("torch.Tensor.is_contiguous_twin")
      .input({column}, {},
             {{"restrided", make_dict({{0, make_tuple({1000})}})},
              {"aten", make_tuple({"aten::stride.int", make_tuple({column, 0})})}})
      .output(1000);
  store.call("torch.Tensor.neg")
      .input({column}, {}, {{"restrided", make_dict({{0, make_tuple({int64_t{1} << 62})}})}})
      .output(-column);
  const Outcome outcome = check(store.path());
  INFO(outcome.report.dump(1));
  CHECK(outcome.status == 2);
  CHECK(outcome.call(0)["status"] == "agrees");
  CHECK(outcome.call(1)["status"] == "could not run");
}

TEST_CASE("A call that raised has to raise again", "[replay]") {
  Store store;
  store.call("torch.Tensor.view").input({ramp({4}), 3}).meta(R"({"format": 1, "error": "shape '[3]' is invalid"})");
  store.call("torch.Tensor.view").input({ramp({4}), 2, 2}).meta(R"({"format": 1, "error": "out of memory"})");
  store.call("torch.Tensor.view").input({ramp({4}), 3});
  const Outcome outcome = check(store.path());
  CHECK(outcome.status == 1);
  CHECK(outcome.call(0)["status"] == "agrees");
  CHECK(outcome.call(1)["status"] == "differs");
  CHECK(outcome.call(2)["status"] == "could not run");
  CHECK_THAT(outcome.call(2)["reason"].get<std::string>(), Catch::StartsWith("raised: "));
}

TEST_CASE("A call that cannot be run or read is listed with path and reason, exit status 2", "[replay]") {
  Store store;
  const at::Tensor x = ramp({2});
  store.call("torch.Tensor.neg").input({x}).output(-x);
  store.call("torch.nn.functional.interpolate").input({x}).output(x);
  store.call("torch.Tensor.map_")
      .input({x})
      .meta(R"({"format": 1, "unsupported": [{"where": "args[2]", "type": "function", "why": "a callable"}]})");
  store.call("torch.Tensor.neg").input({x}).meta("{not json");
  // An accelerator of a name that nobody here knows is no hindrance.
  store.call("torch.Tensor.neg").input({x}).meta(R"({"format": 1, "state": {"autocast": {"quantum": "torch.float"}}})");
  store.call("torch.Tensor.neg").input({x}).meta(R"({"format": 99})");
  auto truncated = store.call("torch.Tensor.neg").input({x});
  fs::resize_file(truncated.last_path, 100);
  auto garbage = store.call("torch.Tensor.neg").input({x});
  std::ofstream(garbage.last_path, std::ios::trunc) << "MZ this is no archive";
  store.call("torch.Tensor.neg").write(CallFile::kInput, make_list({}), {}, {{"rng", "nonsense"}});
  const Outcome outcome = replay_paths({store.path(), "--acc_check", store / "no_such_folder"});
  INFO(outcome.out);
  CHECK(outcome.status == 2);
  CHECK(outcome.report["summary"]["agrees"] == 1);
  CHECK(outcome.report["summary"]["could_not_run"] == 7);
  CHECK(outcome.report["problems"].size() == 1);
  for (const char* text : {"exists in Python only; use python -m op_tools.run_op_from_data",
                           "args[2]: function (a callable)", "meta.json", "format 99", "no_such_folder"}) {
    CHECK_THAT(outcome.out, Catch::Contains(text));
  }
  CHECK_THAT(outcome.out, Catch::Contains(fs::path(truncated.last_path).parent_path().string()));
  CHECK_THAT(outcome.out, Catch::Contains(fs::path(garbage.last_path).parent_path().string()));
}

TEST_CASE("A call whose files are not all there is replayed and named, exit status 2", "[replay]") {
  Store store;
  const at::Tensor x = ramp({2});
  auto without_meta = store.call("torch.Tensor.neg").input({x}).output(-x);
  fs::remove(fs::path(without_meta.last_path).parent_path() / "meta.json");
  auto half_backward =
      store.call("torch.Tensor.neg").input({x}).output(-x).write(CallFile::kGradInputs, make_list({x}), {}, {});
  const Outcome outcome = replay_paths({store.path(), "--acc_check"});
  CHECK(outcome.status == 2);
  CHECK(outcome.report["summary"]["agrees"] == 2);
  CHECK(outcome.report["problems"].size() == 2);
  for (const auto& call : {without_meta, half_backward}) {
    CHECK_THAT(outcome.out, Catch::Contains(fs::path(call.last_path).parent_path().string() + ": cut off"));
  }
}

TEST_CASE("Files of the right form with wrong content are refused, not crashed on", "[replay]") {
  const at::Tensor x = ramp({2});
  const std::vector<Pairs> inputs{
      {},
      {{"name", 5}, {"args", make_tuple({})}, {"kwargs", make_dict({})}},
      {{"name", "torch.Tensor.neg"}, {"args", x}, {"kwargs", make_dict({})}},
      {{"name", "torch.Tensor.neg"}, {"args", make_tuple({x})}, {"kwargs", make_tuple({})}},
      {{"name", "torch.Tensor.neg"}, {"args", make_tuple({x})}, {"kwargs", make_dict({{1, 2}})}},
      {{"name", "torch.Tensor.neg"}, {"args", make_tuple({x})}, {"kwargs", make_dict({})}, {"aten", 3}},
      {{"name", "torch.Tensor.neg"},
       {"args", make_tuple({x})},
       {"kwargs", make_dict({})},
       {"aten", make_tuple({"aten::no_such", make_tuple({x})})}},
      {{"name", "torch.Tensor.neg"},
       {"args", make_tuple({x})},
       {"kwargs", make_dict({})},
       {"restrided", make_dict({{0, make_tuple({1, 1, 1})}})}},
      {{"name", "torch.Tensor.neg"},
       {"args", make_tuple({x})},
       {"kwargs", make_dict({})},
       {"rng", make_dict({{"cpu", ramp({3})}})}},
  };
  const TemporaryFolder folder;
  const auto store = CallStore::create(CaptureFormat::kFolders, folder.path(), 0);
  uint64_t id = 0;
  for (const Pairs& input : inputs) store->write({"torch.Tensor.neg", ++id}, CallFile::kInput, 0, make_dict(input));
  const Outcome outcome = check(folder.path());
  INFO(outcome.report.dump(1));
  CHECK(outcome.status == 2);
  CHECK(outcome.report["summary"]["could_not_run"] == inputs.size());
}

TEST_CASE("Wrong usage is exit status 64", "[replay]") {
  Store store;
  store.call("torch.Tensor.neg").input({ramp({2})});
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"--acc_check"},
      {store.path(), "--no_such_flag"},
      {store.path(), "--run_times", "0"},
      {store.path(), "--run_times", "many"},
      {store.path(), "--jobs", "0"},
      {store.path(), "--device", "quantum"},
      {store.path(), "--filter", "("},
      {store.path(), "--load", store / "no_such_library.so"},
  };
  for (const auto& arguments : wrong) {
    CapturedStream out(STDOUT_FILENO), err(STDERR_FILENO);
    const int status = replay::run_command(arguments);
    const std::string text = err.text();
    CHECK(status == 64);
    CHECK_FALSE(text.empty());
  }
  CapturedStream out(STDOUT_FILENO);
  CHECK(replay::run_command({"--help"}) == 0);
  CHECK_THAT(out.text(), Catch::Contains("--sync_time_measure") && Catch::Contains("Examples"));
}

TEST_CASE("Python's calls go to the caller that knows them", "[replay]") {
  struct Doubler : replay::PythonCaller {
    bool knows(std::string_view name) override { return name == "torch.double_it"; }
    Value call(std::string_view, const Value& args, const Value&) override { return flatten_tensors(args).at(0) * 2; }
  } caller;
  Store store;
  const at::Tensor x = leaf(ramp({3}));
  store.call("torch.double_it").input({x}).output(x.detach() * 2).gradients({at::ones({3})}, {at::ones({3}) * 2});
  CHECK(replay_paths({store.path(), "--acc_check"}, &caller).report["summary"]["bit_equal"] == 1);
  CHECK(check(store.path()).status == 2);
}

namespace {

// A hook that asks for everything, on replayed calls.
class ReplayedCalls final : public Hook {
 public:
  struct Seen {
    std::string name;
    Level level;
    Phase phase;
    uint64_t id;
    std::vector<at::Tensor> arguments, result;
  };

  std::string_view name() const override { return "ReplayedCalls"; }
  Wants wants() const override { return {.gradients = true}; }
  std::unique_ptr<HookState> before(OpCall& call) override {
    call.args();
    return nullptr;
  }
  void after(OpCall& call, HookState*) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_.push_back({std::string(call.name), call.level, call.phase, call.id, without_history(call.args()),
                     without_history(call.result())});
  }
  std::vector<Seen> seen() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return seen_;
  }

 private:
  // The graph of a call owns the hook: a hook that owned tensors of the graph would never be freed.
  static std::vector<at::Tensor> without_history(const Value& values) {
    std::vector<at::Tensor> tensors = flatten_tensors(values);
    for (at::Tensor& tensor : tensors) tensor = tensor.detach();
    return tensors;
  }

  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
};

ResolvedOptions at_level(Level level) {
  ResolvedOptions options;
  options.level = level;
  return options;
}

}  // namespace

TEST_CASE("Hooks see a replayed call and its backward under the recorded name and id", "[replay]") {
  Store store;
  const auto [x, y] = save_division(store);
  const auto hook = std::make_shared<ReplayedCalls>();
  HookScope scope(hook, at_level(Level::kTorch));
  scope.enter();
  CHECK(check(store.path()).status == 0);
  scope.leave();
  const auto seen = hook->seen();
  REQUIRE(seen.size() == 2);  // the reference and float64 runs are none
  CHECK(seen[0].name == "torch.Tensor.div");
  CHECK(seen[0].level == Level::kTorch);
  CHECK(seen[0].phase == Phase::kForward);
  CHECK(seen[0].id == 1);
  CHECK(at::equal(seen[0].arguments.at(1), y));
  CHECK(at::equal(seen[0].result.at(0), x / y));
  CHECK(seen[1].name == "torch.Tensor.div");
  CHECK(seen[1].phase == Phase::kBackward);
  CHECK(seen[1].id == 1);
  CHECK(at::equal(seen[1].arguments.at(0), at::ones({2, 3})));
  CHECK(at::equal(seen[1].result.at(0), 1 / y.detach()));
}

TEST_CASE("Hooks of the aten level see the operators of a replayed call, and no copy or comparison", "[replay]") {
  Store store;
  const at::Tensor x = ramp({4});
  store.call("torch.Tensor.mul").input({x, 3}).output(x * 2);  // wrong: float64 and perturbed runs are made
  store.call("aten::add.Tensor").input({x, x}).output(x + x).meta(R"({"level": "aten"})");
  const auto hook = std::make_shared<ReplayedCalls>();
  HookScope scope(hook, at_level(Level::kAten));
  scope.enter();
  CHECK(check(store.path()).status == 1);
  scope.leave();
  std::multiset<std::string> names;
  for (const auto& call : hook->seen()) {
    names.insert(call.name);
    if (call.name == "aten::add.Tensor") CHECK(call.id == 2);
  }
  CHECK(names == std::multiset<std::string>{"aten::add.Tensor", "aten::mul.Tensor"});
}

TEST_CASE("The scopes of the thread that replays hold for the workers of --jobs", "[replay]") {
  Store store;
  const at::Tensor x = ramp({4});
  for (int i = 0; i < 24; ++i) store.call("torch.Tensor.add").input({x, i}).output(x + i);
  const auto hook = std::make_shared<ReplayedCalls>();
  HookScope scope(hook, at_level(Level::kTorch));
  scope.enter();
  CHECK(check(store.path(), {"--jobs", "4"}).status == 0);
  scope.leave();
  std::set<uint64_t> ids;
  for (const auto& call : hook->seen()) ids.insert(call.id);
  CHECK(ids.size() == 24);
}

TEST_CASE("A hook that fails costs the replay nothing", "[replay]") {
  Store store;
  const at::Tensor x = ramp({4});
  store.call("torch.Tensor.add").input({x, 1}).output(x + 1);
  for (const bool in_before : {true, false}) {
    HookScope scope(std::make_shared<test::FailingHook>(in_before), at_level(Level::kTorch));
    scope.enter();
    CHECK(check(store.path()).status == 0);
    scope.leave();
    CHECK(scope.hook_failures() == 1);
  }
}

TEST_CASE("Scalars are rounded to float32 in every form of the arguments", "[replay][compare]") {
  const at::Tensor x = ramp({4});
  const CallArguments call{make_tuple({x, 0.1}), make_dict({{"alpha", 0.2}}),
                           make_tuple({"aten::add.Tensor", make_tuple({x, 0.1, 0.2, 1e-5})})};
  const VariantInputs rounded(call, "add", {RunVariant::Kind::kFloat32Scalars}, std::nullopt);
  const auto scalars = [](const Value& value) {
    std::vector<double> numbers;
    for (const Value& leaf : leaves_of(value)) {
      if (const auto* scalar = leaf.get_if<double>()) numbers.push_back(*scalar);
    }
    return numbers;
  };
  const auto in_float32 = [](float value) { return static_cast<double>(value); };
  CHECK(scalars(rounded.arguments().args) == std::vector<double>{in_float32(0.1f)});
  CHECK(scalars(rounded.arguments().kwargs) == std::vector<double>{in_float32(0.2f)});
  // 1e-5 is a default of the schema: the call did not give it.
  CHECK(scalars(rounded.arguments().aten) == std::vector<double>{in_float32(0.1f), in_float32(0.2f), 1e-5});
  CHECK_THROWS_AS(VariantInputs({make_tuple({x, 0.5}), make_dict({}), {}}, "add", {RunVariant::Kind::kFloat32Scalars},
                                std::nullopt),
                  Error);
}

TEST_CASE("Every form of the arguments shares the tensors of a variant, in float64", "[replay][compare]") {
  const at::Tensor x = ramp({4}).to(at::kHalf);
  const CallArguments call{make_tuple({x, 1, true}), make_dict({}),
                           make_tuple({"aten::_softmax", make_tuple({x, 1, true})})};
  const VariantInputs wide(call, "_softmax", {RunVariant::Kind::kFloat64Perturbed, 1, true}, std::nullopt);
  const auto in_args = flatten_tensors(wide.arguments().args), in_aten = flatten_tensors(wide.arguments().aten);
  REQUIRE(in_args.size() == 1);
  CHECK(in_args[0].is_same(in_aten.at(0)));
  CHECK(in_args[0].scalar_type() == at::kDouble);
  CHECK_FALSE(at::equal(in_args[0], x.to(at::kDouble)));
  // half_to_float refuses float64.
  CHECK(describe((*sequence_items(wide.arguments().args))[2]) == "False");
  CHECK(describe((*sequence_items((*sequence_items(wide.arguments().aten))[1]))[2]) == "False");
}

TEST_CASE("Inputs that autocast rounds are perturbed by its dtype", "[replay][compare]") {
  const at::Tensor x = ramp({64}) + 0.1;
  const CallArguments call{make_tuple({x}), make_dict({}), {}};
  const RunVariant coarse{RunVariant::Kind::kFloat64Perturbed, 0, true};
  const auto moved_by = [&](std::optional<c10::ScalarType> autocast) {
    const VariantInputs inputs(call, "exp", coarse, autocast);
    return (inputs.tensors().at(0) - x.to(at::kDouble)).abs().max().item<double>();
  };
  CHECK(moved_by(at::kBFloat16) > 1000 * moved_by(std::nullopt));
}
