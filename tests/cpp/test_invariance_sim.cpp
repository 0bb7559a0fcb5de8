// OpInvariance: the difference of two results, the dimension of the batch, and the tool as a scope.
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>

#include <ATen/Parallel.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.h"
#include "hooks/attention_form.h"
#include "hooks/batch_form.h"
#include "hooks/python_arguments.h"
#include "invariance/invariance_hook.h"
#include "invariance/other_execution.h"
#include "on_device.h"
#include "quiet_log.h"
#include "scoped_variable.h"
#include "sim_device/sim_device.h"
#include "temporary_folder.h"
#include "written_text.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::on_device;
using op_tools::test::QuietLog;
using op_tools::test::ScopedVariable;
using op_tools::test::TemporaryFolder;
using op_tools::test::written_by;

namespace {

BatchForm form_of(std::string_view name, const Values& args, const std::vector<bool>& written = {}) {
  const Value positional = make_tuple(args);
  return batch_form(name, positional, make_dict({}), flatten_tensors(positional), written);
}

}  // namespace

TEST_CASE("Elements, rows and bits that differ are counted", "[invariance]") {
  const at::Tensor program = at::ones({4, 3});
  CHECK_FALSE(bit_difference({program}, {program.clone()}));
  CHECK_FALSE(bit_difference({program, at::Tensor()}, {program, at::ones({1})}));  // a side is undefined
  const at::Tensor other = program.clone();
  auto* bits = static_cast<uint32_t*>(other.mutable_data_ptr());
  bits[1] ^= 1u;
  bits[2] ^= 2u;
  bits[9] ^= 1u;
  const auto difference = bit_difference({at::zeros({2}), program}, {at::zeros({2}), other});
  REQUIRE(difference);
  CHECK(difference->output == 1);
  CHECK(difference->elements == 3);
  CHECK(difference->rows == 2);
  CHECK(difference->of_rows == 4);
  CHECK(difference->bits == 3);
  CHECK(difference->max_ulp == 2);
  CHECK(difference->places == std::vector<int64_t>{1, 2, 9});
  CHECK(bits_text(difference->bits) == "bits 0-1");
  CHECK(bits_text(uint64_t{1} << 31 | 1) == "bits 0, 31");
  CHECK(bits_text(4) == "bit 2");
  CHECK_FALSE(bit_difference({program}, {at::ones({3, 4})})->structure.empty());
  CHECK_FALSE(bit_difference({program}, {})->structure.empty());
}

TEST_CASE("Elements of two rows that have other bits are counted", "[invariance]") {
  const at::Tensor rows = at::zeros({3, 4}, at::kHalf);
  rows[1][2] = -0.0;
  rows[2][0] = 1;
  rows[2][3] = 1;
  CHECK(elements_that_differ(rows, 0, 0) == 0);
  CHECK(elements_that_differ(rows, 0, 1) == 1);
  CHECK(elements_that_differ(rows, 1, 2) == 3);
  CHECK(elements_that_differ(at::zeros({2, 0}), 0, 1) == 0);
}

TEST_CASE("Elements that differ have their addresses, by the strides of their side", "[invariance]") {
  const at::Tensor program = at::zeros({4, 3}).t(), other = at::zeros({3, 4});  // the program's in columns
  other.mutable_data_ptr<float>()[5] = 1;                                       // row 1, column 1
  const auto difference = bit_difference({program}, {other});
  REQUIRE(difference);
  CHECK(difference->places == std::vector<int64_t>{5});
  const auto address = [](const at::Tensor& tensor, uint64_t element) {
    return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) + element * sizeof(float);
  };
  CHECK(difference->program_addresses == std::vector<uint64_t>{address(program, 4)});
  CHECK(difference->other_addresses == std::vector<uint64_t>{address(other, 5)});
  const at::Tensor many = at::zeros({1000}), ones = at::ones({1000});
  CHECK(bit_difference({many}, {ones})->places.size() == BitDifference::kMostPlaces);
}

TEST_CASE("Zeros of another sign have other bits", "[invariance]") {
  const auto difference = bit_difference({at::zeros({2})}, {at::zeros({2}).neg()});
  REQUIRE(difference);
  CHECK(difference->elements == 2);
  CHECK(bits_text(difference->bits) == "bit 31");
}

TEST_CASE("The batch of an operator is known, or it is not judged", "[invariance]") {
  const at::Tensor x = at::ones({4, 3}), w = at::ones({5, 3}), square = at::ones({3, 3});
  BatchForm form = form_of("torch.nn.functional.linear", {x, w});
  CHECK(form.why_not.empty());
  CHECK(form.rows == 4);
  CHECK(form.of == std::vector<bool>{true, false});
  CHECK(form_of("aten::mm", {x, square}).of == std::vector<bool>{true, false});
  CHECK(form_of("aten::mul.Tensor", {x, x}).of == std::vector<bool>{true, true});
  CHECK(form_of("aten::mul.Tensor", {x, at::ones({3})}).of == std::vector<bool>{true, false});
  CHECK(form_of("aten::mul.Tensor", {at::ones({1, 3}), x}).of == std::vector<bool>{false, true});
  CHECK(form_of("aten::_softmax", {x, int64_t{-1}, false}).why_not.empty());
  CHECK(form_of("torch.nn.functional.embedding", {at::ones({2, 2}, at::kLong), w}).of ==
        std::vector<bool>{true, false});
  CHECK(form_of("aten::embedding", {w, at::ones({2, 2}, at::kLong)}).of == std::vector<bool>{false, true});
  CHECK(form_of("torch.matmul", {at::ones({2, 4, 3}), square}).rows == 2);
  CHECK(form_of("torch.matmul", {square, at::ones({2, 3, 4})}).of == std::vector<bool>{false, true});

  // [B, T, ...]: the size of the second dimension, where it has rows.
  const at::Tensor tokens = at::ones({2, 5, 3});
  CHECK(form_of("torch.nn.functional.linear", {tokens, w}).sequence == 5);
  CHECK(form_of("torch.matmul", {tokens, square}).sequence == 5);
  CHECK(form_of("torch.matmul", {tokens, at::ones({2, 3, 4})}).sequence == 0);
  CHECK(form_of("aten::mul.Tensor", {tokens, at::ones({3})}).sequence == 5);
  CHECK(form_of("aten::mul.Tensor", {tokens, at::ones({1, 1, 3})}).sequence == 5);
  CHECK(form_of("aten::mul.Tensor", {tokens, at::ones({5, 3})}).sequence == 0);  // a table of positions
  CHECK(form_of("aten::mul.Tensor", {tokens, at::ones({2, 1, 3})}).sequence == 0);
  CHECK(form_of("aten::mul.Tensor", {x, x}).sequence == 0);
  CHECK(form_of("aten::_softmax", {tokens, int64_t{-1}, false}).sequence == 5);
  CHECK(form_of("aten::_softmax", {tokens, int64_t{1}, false}).sequence == 0);
  CHECK(form_of("aten::layer_norm", {tokens, make_list({int64_t{3}})}).sequence == 5);
  CHECK(form_of("aten::layer_norm", {tokens, make_list({int64_t{5}, int64_t{3}})}).sequence == 0);
  CHECK(form_of("aten::embedding", {w, at::ones({2, 4}, at::kLong)}).sequence == 4);
  CHECK(form_of("aten::bmm", {tokens, at::ones({2, 3, 4})}).sequence == 0);

  CHECK_FALSE(form_of("aten::_softmax", {x, int64_t{0}, false}).why_not.empty());  // along the rows
  CHECK_FALSE(form_of("aten::sum", {x}).why_not.empty());                          // of all elements
  CHECK_FALSE(form_of("aten::layer_norm", {x, make_list({int64_t{4}, int64_t{3}})}).why_not.empty());
  CHECK_FALSE(form_of("torch.nn.functional.linear", {at::ones({3}), w}).why_not.empty());
  CHECK_FALSE(form_of("aten::mm", {square, square}).why_not.empty());  // a tensor in two places
  CHECK_FALSE(form_of("aten::sort", {x, int64_t{0}}).why_not.empty());
  CHECK_FALSE(form_of("mine::mm", {x, square}).why_not.empty());  // of another library
  CHECK_FALSE(form_of("aten::cholesky", {square}).why_not.empty());
  CHECK_FALSE(form_of("aten::mul_.Tensor", {at::ones({3}), at::ones({1})}, {false, true}).why_not.empty());
  CHECK_FALSE(form_of("aten::mul.Tensor", {at::ones({}), at::ones({})}).why_not.empty());
}

TEST_CASE("Attention tells its queries, its keys and which are left out", "[invariance]") {
  const at::Tensor q = at::ones({1, 2, 3, 4}), k = at::ones({1, 2, 5, 4}), v = at::ones({1, 2, 5, 4});
  const auto form = [](std::string_view name, const Values& args, Value kwargs = make_dict({})) {
    return attention_form(name, make_tuple(args), kwargs);
  };
  const std::string_view sdpa = "torch.nn.functional.scaled_dot_product_attention";
  CHECK_FALSE(form("torch.nn.functional.linear", {q, k}));
  CHECK_FALSE(form("mine::scaled_dot_product_attention", {q, k, v}));
  REQUIRE(form(sdpa, {q, k, v}));
  CHECK_FALSE(form(sdpa, {q, k, v})->leaves_out());
  CHECK(form(sdpa, {q, k, v})->query.is_same(q));
  const at::Tensor mask = at::ones({3, 5}, at::kBool);
  REQUIRE(form(sdpa, {q, k, v, mask}));
  CHECK(form(sdpa, {q, k, v, mask})->why_not.empty());
  CHECK(form(sdpa, {q, k, v, mask})->mask.is_same(mask));
  CHECK(form(sdpa, {q, k, v, mask})->leaves_out());
  CHECK(form(sdpa, {q, k, v}, make_dict({{"is_causal", true}}))->why_not.empty());
  CHECK(form("aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, v, 0.0, true})->key.is_same(k));
  CHECK_FALSE(form(sdpa, {q, k, v, at::ones({3, 1}, at::kBool)})->why_not.empty());  // a column for all keys
  CHECK_FALSE(form(sdpa, {k, q, at::ones({1, 2, 3, 4})}, make_dict({{"is_causal", true}}))->why_not.empty());
  CHECK_FALSE(form(sdpa, {k, k, v, mask})->why_not.empty());
  CHECK_FALSE(form("aten::_scaled_dot_product_cudnn_attention", {q, k, v, {}, true, 0.0, true})->why_not.empty());
}

TEST_CASE("An argument gets another value at its place, or by its name", "[invariance]") {
  const auto with = [](const Values& args, const Value& kwargs) {
    return with_argument("query mask is_causal", "mask", 7, make_tuple(args), kwargs);
  };
  const NamedArguments at_place = with({1, 2}, make_dict({{"is_causal", true}}));
  CHECK(*(*sequence_items(at_place.args))[1].get_if<int64_t>() == 7);
  CHECK(find_key(at_place.kwargs, "mask") == nullptr);
  const NamedArguments by_name = with({1}, make_dict({{"mask", 2}}));
  CHECK(sequence_items(by_name.args)->size() == 1);
  CHECK(*find_key(by_name.kwargs, "mask")->get_if<int64_t>() == 7);
  CHECK(by_name.kwargs.get_if<Dict>()->items->size() == 1);
  CHECK(*find_key(with({1}, make_dict({})).kwargs, "mask")->get_if<int64_t>() == 7);
}

TEST_CASE("The tool is a scope, and what keeps its bits agrees", "[invariance]") {
  const QuietLog quiet;
  const TemporaryFolder folder;
  InvarianceOptions options;
  options.output_dir = folder.path();
  const at::Tensor x = at::rand({6, 8});
  const at::Tensor expected = x.mul(x).softmax(-1);
  {
    OpInvariance tool(options);
    const at::Tensor result = x.mul(x).softmax(-1);
    CHECK(result.equal(expected));
    const InvarianceResult report = tool.hook().result();
    CHECK(report.calls >= 2);
    CHECK(report.varied.total() == 0);
    CHECK(report.kept[Relation::kRepeat] >= 2);
    CHECK(report.kept[Relation::kBatch] >= 2);
    CHECK(report.kept[Relation::kPosition] >= 2);
    Coverage account;
    tool.hook().add_coverage(account);
    CHECK(account.judged == report.kept.total());
  }
}

namespace {

// What is printed for `calls` calls of sqrt with a fault in it; the rows of the report.
std::string printed(const char* kind, int calls, std::vector<Value>* rows, at::IntArrayRef sizes = {6, 8}) {
  const ScopedVariable level("OP_TOOLS_LOG_LEVEL", "notice");
  log::reload_level();
  const TemporaryFolder folder;
  InvarianceOptions options;
  options.output_dir = folder.path();
  options.ops = "aten::sqrt";
  options.first_n_per_signature = 100;
  const at::Tensor x = on_device(at::rand(sizes).add_(1));
  const sim_device::Fault fault({.kind = kind, .ops = "aten::sqrt", .scale = 1.5});
  return written_by([&] {
    OpInvariance tool(options);
    for (int call = 0; call < calls; ++call) at::sqrt(x);
    const Value report = tool.hook().report();
    *rows = *sequence_items(*find_key(report, "rows"));
  });
}

std::string text_in(const Value& row, std::string_view column) {
  const Value* value = find_key(row, column);
  REQUIRE(value);
  REQUIRE(value->is<std::string>());
  return *value->get_if<std::string>();
}

int64_t number_in(const Value& row, std::string_view column) {
  const Value* value = find_key(row, column);
  REQUIRE(value);
  REQUIRE(value->is<int64_t>());
  return *value->get_if<int64_t>();
}

size_t times(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("A finding is printed with its relation, and its row has the same", "[invariance]") {
  const QuietLog quiet;
  struct Printed {
    const char *kind, *relation, *sentence;
    std::vector<int64_t> sizes = {6, 8};
  };
  const Printed expected[] = {
      {"misaligned", "memory", "aten::sqrt has other bits in other memory: 48 of 48 elements in 6 of 6 rows"},
      {"every_second", "repeat", "aten::sqrt does not repeat its bits (4 of 8 runs are other): 48 of 48 elements"},
      {"other_stream", "stream", "aten::sqrt has other bits on another stream of the device: 48 of 48 elements"},
      {"neighbour", "neighbour",
       "aten::sqrt has other bits beside other values in the batch (odd rows replaced by even rows near them, of 6): "
       "16 of 24 elements in 2 of 3 rows"},
      {"batch_position", "position",
       "aten::sqrt has other bits at another position of the batch (each row a place further, of 6): 48 of 48"},
      {"batch_size", "batch",
       "aten::sqrt has other bits in another batch (row 0 alone, of 6; from 2 rows on): 8 of 8 elements"},
      {"gaps", "strides", "aten::sqrt has other bits with other strides (a gap behind each row, or none): 48 of 48"},
      {"token_position",
       "shift",
       "aten::sqrt has other bits at another place of its sequence (each a place further, of 3 rows): 48 of 48 "
       "elements",
       {3, 4, 4}},
      {"sequence_length",
       "sequence",
       "aten::sqrt has other bits in another sequence (the first 2 of 4 places, of 3 rows): 24 of 24 elements",
       {3, 4, 4}},
  };
  for (const auto& [kind, relation, sentence, sizes] : expected) {
    INFO(kind);
    std::vector<Value> rows;
    const std::string text = printed(kind, 1, &rows, sizes);
    INFO(text);
    CHECK(times(text, std::string("OpInvariance: ") + sentence) == 1);
    CHECK(times(text, " 1 NOT KEPT; files in ") == 1);
    CHECK(times(text, std::string("calls  ") + relation + "  kept") == 1);  // the table's title
    REQUIRE(rows.size() == 1);
    CHECK(text_in(rows[0], "op") == "aten::sqrt");
    CHECK(text_in(rows[0], "relation") == relation);
    CHECK(number_in(rows[0], "elements") > 0);
    CHECK(text_in(rows[0], "device") == "sim:0");
    const bool has_batch = std::string_view(relation) == "batch";
    CHECK(find_key(rows[0], "begins")->is<int64_t>() == has_batch);
    if (has_batch) CHECK(number_in(rows[0], "begins") == 2);
  }
}

TEST_CASE("Findings of a kind have a line and a count", "[invariance]") {
  const QuietLog quiet;
  std::vector<Value> rows;
  const std::string text = printed("batch_size", 5, &rows);
  CHECK(times(text, "has other bits in another batch") == 1);
  CHECK(times(text, " 5 NOT KEPT; 4 of them without a line here (-v prints all)") == 1);
  CHECK(rows.size() == 5);
}

TEST_CASE("The program's number of threads is the same after a run with another", "[invariance]") {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    {
      const OtherThreadCount other;
      CHECK(at::get_num_threads() == (threads == 1 ? 2 : 1));
    }
    CHECK(at::get_num_threads() == threads);
    CHECK_THROWS_AS(
        [] {
          const OtherThreadCount other;
          throw std::runtime_error("in a run");
        }(),
        std::runtime_error);
    CHECK(at::get_num_threads() == threads);
  }
  at::set_num_threads(before);
}

TEST_CASE("The program's stream is current again after a run on another", "[invariance]") {
  const at::Tensor x = on_device(at::ones({2}));
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  const c10::Stream before = guard.getStream(x.device());
  c10::Stream used = before;
  {
    const OtherStream other(x.device());
    used = guard.getStream(x.device());
    CHECK(used != before);
    other.wait();
  }
  CHECK(guard.getStream(x.device()) == before);
  guard.exchangeStream(used);  // the program runs on it: another is taken
  {
    const OtherStream other(x.device());
    CHECK(guard.getStream(x.device()) != used);
  }
  CHECK(guard.getStream(x.device()) == used);
  guard.exchangeStream(before);
}
