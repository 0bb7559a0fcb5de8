#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "base/error.h"
#include "catch.h"
#include "fallback/cast_rules.h"
#include "fallback/redirect.h"
#include "fallback/redirect_hook.h"
#include "scoped_variable.h"

using namespace op_tools;
using test::ScopedVariable;

namespace {

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

at::Tensor halves() {
  return at::arange(1, 401, at::kFloat).sin().reshape({20, 20}).to(at::kBFloat16);
}

}  // namespace

TEST_CASE("operators that only look, lie or lead elsewhere are never redirected, with the reason", "[fallback]") {
  CHECK(why_not_redirected(find("aten::add", "Tensor")).empty());
  CHECK(why_not_redirected(find("aten::linear")).empty());
  CHECK(why_not_redirected(find("aten::_foreach_add_", "List")).empty());
  CHECK(why_not_redirected(find("aten::mm", "out")).empty());
  CHECK_THAT(why_not_redirected(find("aten::view")), Catch::Contains("view of its input"));
  CHECK_THAT(why_not_redirected(find("aten::reshape")), Catch::Contains("view of its input"));
  CHECK_THAT(why_not_redirected(find("aten::split", "Tensor")), Catch::Contains("view of its input"));
  CHECK_THAT(why_not_redirected(find("aten::t_")), Catch::Contains("sizes and strides"));
  CHECK_THAT(why_not_redirected(find("aten::set_", "source_Tensor")), Catch::Contains("memory"));
  CHECK_THAT(why_not_redirected(find("aten::zeros")), Catch::Contains("takes none"));
  CHECK_THAT(why_not_redirected(find("aten::empty_like")), Catch::Contains("uninitialized memory"));
  CHECK_THAT(why_not_redirected(find("aten::_local_scalar_dense")), Catch::Contains("hands a value"));
  CHECK_THAT(why_not_redirected(find("_c10d_functional::all_reduce")), Catch::Contains("collective"));
  CHECK(changes_inputs(find("aten::add_", "Tensor")));
  CHECK(!changes_inputs(find("aten::add", "out")));
}

TEST_CASE("a C++ program casts operators of its own", "[fallback]") {
  const at::Tensor x = halves();
  DtypeCastOptions options;
  options.ops = "mm";
  const OpDtypeCast scope(options);
  const at::Tensor product = at::mm(x, x);
  CHECK(product.scalar_type() == at::kBFloat16);
  CHECK(product.equal(at::mm(x.to(at::kFloat), x.to(at::kFloat)).to(at::kBFloat16)));
  const RedirectResult result = scope.result();
  REQUIRE(result.rows.size() == 1);
  CHECK(result.rows[0].op == "aten::mm");
  CHECK(result.rows[0].calls == 1);
  CHECK(result.rows[0].bytes > 0);
}

TEST_CASE("running statistics are written back although the schema does not say that they change", "[fallback]") {
  const at::Tensor x = halves(), mean = at::zeros({20}, at::kBFloat16), var = at::ones({20}, at::kBFloat16);
  at::Tensor plain_mean = mean.clone(), plain_var = var.clone();
  at::native_batch_norm(x, {}, {}, plain_mean, plain_var, /*training=*/true, 0.5, 1e-5);
  const int64_t version = mean._version();
  DtypeCastOptions options;
  options.ops = "native_batch_norm";
  const OpDtypeCast scope(options);
  at::native_batch_norm(x, {}, {}, mean, var, /*training=*/true, 0.5, 1e-5);
  REQUIRE(scope.result().rows.size() == 1);
  CHECK(at::allclose(mean.to(at::kFloat), plain_mean.to(at::kFloat), 0.02, 0.01));
  CHECK(at::allclose(var.to(at::kFloat), plain_var.to(at::kFloat), 0.02, 0.01));
  CHECK(mean.abs().sum().item<double>() > 0);
  CHECK(mean._version() == version);
}

TEST_CASE("a call on the CPU is no call for the fallback", "[fallback]") {
  const OpFallback scope;
  const at::Tensor x = halves();
  CHECK(at::add(x, x).equal(x * 2));
  CHECK(scope.result().rows.empty());
}

TEST_CASE("cast rules hold for all operators, or for a single operator by its name in capitals", "[fallback]") {
  const ScopedVariable all("OP_DTYPE_CAST_DICT", "torch.float16 -> torch.float32, bfloat16->float");
  const ScopedVariable of_add("ADD__OP_DTYPE_CAST_DICT", "torch.complex64->torch.complex128");
  const auto rules_of = [](std::string text) {
    FallbackOptions options;
    options.cast = std::move(text);
    return CastRules(cast_settings(resolve(options).cast));
  };
  const CastRules rules(cast_settings(resolve(FallbackOptions{}).cast));
  CHECK(rules.for_op("aten::mm")(at::kHalf) == at::kFloat);
  CHECK(rules.for_op("torch.nn.functional.linear")(at::kBFloat16) == at::kFloat);
  CHECK(rules.for_op("aten::mm")(at::kDouble) == at::kDouble);
  CHECK(rules.for_op("aten::add_.Tensor")(at::kHalf) == at::kHalf);
  CHECK(rules.for_op("torch.Tensor.add_")(at::kComplexFloat) == at::kComplexDouble);
  const CastRules rules_of_text = rules_of("torch.float32->torch.float64");
  CHECK(rules_of_text.for_op("torch.Tensor.add_")(at::kFloat) == at::kDouble);
  CHECK(!rules_of("").for_op("aten::mm"));
  for (const char* wrong : {"float", "float16->", "float16->nothing", "float16->int32", "half->float,half->double"}) {
    CHECK_THROWS_WITH(rules_of(wrong), Catch::StartsWith("cast=: '"));
  }
}

TEST_CASE("options of the fallback come from the environment, an argument wins", "[fallback][options]") {
  const ScopedVariable missing("OP_FALLBACK_ON_MISSING", "1");
  CHECK(resolve(FallbackOptions{}).on_missing);
  FallbackOptions options;
  options.on_missing = false;
  CHECK(!resolve(options).on_missing);
  CHECK(resolve(DtypeCastOptions{}).cast.get().find("bfloat16") != std::string::npos);
  CHECK(resolve(FallbackOptions{}).cast.get().empty());
}
