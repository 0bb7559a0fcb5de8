// OpInvariance: the difference of two results, the dimension of the batch, and the tool as a scope.
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "catch.h"
#include "hooks/batch_form.h"
#include "invariance/invariance_hook.h"
#include "quiet_log.h"
#include "temporary_folder.h"

using namespace op_tools;  // NOLINT: a test
using op_tools::test::QuietLog;
using op_tools::test::TemporaryFolder;

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
  CHECK(bits_text(difference->bits) == "bits 0-1");
  CHECK(bits_text(uint64_t{1} << 31 | 1) == "bits 0, 31");
  CHECK(bits_text(4) == "bit 2");
  CHECK_FALSE(bit_difference({program}, {at::ones({3, 4})})->structure.empty());
  CHECK_FALSE(bit_difference({program}, {})->structure.empty());
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
