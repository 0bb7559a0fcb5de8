#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "catch.h"
#include "compare/call_judge.h"
#include "compare/judge.h"
#include "hooks/op_traits.h"
#include "special_values.h"

using namespace op_tools;

namespace {

const ToleranceTable kTable;

at::Tensor golden_values(int64_t n, int64_t seed = 1) {
  // Not at::randn: the same on every platform, and no generator is moved.
  const at::Tensor x = at::arange(1, n + 1, at::kDouble);
  return (x * (12.9898 + static_cast<double>(seed))).sin() * (x * 0.7 + 1).cos() * 3;
}

TensorVerdict judged(const at::Tensor& result, const at::Tensor& reference, const at::Tensor& golden,
                     CompareMethod method = CompareMethod::kRelative, bool nan_equal = true) {
  JudgeContext context;
  context.op = "aten::op";
  context.method = method;
  context.tolerances = &kTable;
  context.nan_equal = nan_equal;
  if (golden.defined()) context.golden = [&](std::string*) { return golden; };
  return judge(result, reference, context);
}

// The result of a right kernel of the dtype for golden values.
at::Tensor rounded(const at::Tensor& golden, at::ScalarType dtype) {
  return golden.to(dtype);
}

}  // namespace

TEST_CASE("Rounding is no difference, a small fault is", "[judge]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    INFO(dtype);
    const at::Tensor golden = golden_values(3000);
    const at::Tensor right = rounded(golden, dtype);
    const double unit = rounding_of(dtype).unit;
    CHECK(judged(right, right, golden).verdict == Verdict::kAgrees);
    // Another right kernel: half a unit beside the first.
    const at::Tensor other = rounded(golden * (1 + unit / 4), dtype);
    CHECK(judged(other, right, golden).verdict == Verdict::kAgrees);

    const TensorVerdict scaled = judged(rounded(golden * 1.01, dtype), right, golden);
    CHECK(scaled.verdict == Verdict::kDiffers);
    CHECK(scaled.kind == "values");
    CHECK(scaled.deciding != Deciding::kNothing);
    CHECK(scaled.number > scaled.limit);

    at::Tensor faulty = right.clone();
    faulty[1234] = faulty[1234] + 1;
    const TensorVerdict element = judged(faulty, right, golden);
    CHECK(element.verdict == Verdict::kDiffers);
    CHECK(element.diff.worst_index == std::vector<int64_t>{1234});

    const at::Tensor rows = right.reshape({100, 30});
    CHECK(judged(rows.flip(0), rows, golden.reshape({100, 30})).verdict == Verdict::kDiffers);
  }
}

TEST_CASE("An error in a small element is found beside large ones", "[judge]") {
  at::Tensor golden = golden_values(2000);
  golden[7] = 1e6;
  golden[8] = 1e-6;
  const at::Tensor right = golden.to(at::kFloat);
  at::Tensor wrong = right.clone();
  wrong[8] = 1.1e-6;
  const TensorVerdict verdict = judged(wrong, right, golden);
  CHECK(verdict.verdict == Verdict::kDiffers);
  CHECK(verdict.deciding == Deciding::kMaxUlp);
}

TEST_CASE("Sums in another order agree, sums in a dtype that is too small do not", "[judge]") {
  const at::Tensor a = golden_values(64 * 2048).reshape({64, 2048}),
                   b = golden_values(2048 * 32, 5).reshape({2048, 32});
  const at::Tensor golden = a.matmul(b);
  const at::Tensor a32 = a.to(at::kFloat), b32 = b.to(at::kFloat);
  // The inputs are the float32 ones.
  const at::Tensor exact = a32.to(at::kDouble).matmul(b32.to(at::kDouble));
  at::Tensor one_by_one = at::zeros({64, 32}, at::kFloat);
  for (int64_t k = 0; k < 2048; ++k) one_by_one += a32.narrow(1, k, 1) * b32.narrow(0, k, 1);
  CHECK(judged(one_by_one, a32.matmul(b32), exact).verdict == Verdict::kAgrees);
  const at::Tensor low = a.to(at::kBFloat16).matmul(b.to(at::kBFloat16)).to(at::kFloat);
  CHECK(judged(low, a32.matmul(b32), exact).verdict == Verdict::kDiffers);

  const at::Tensor a16 = a.to(at::kBFloat16), b16 = b.to(at::kBFloat16);
  const at::Tensor exact16 = a16.to(at::kDouble).matmul(b16.to(at::kDouble));
  at::Tensor poor = at::zeros({64, 32}, at::kBFloat16);
  for (int64_t k = 0; k < 2048; ++k) poor += a16.narrow(1, k, 1) * b16.narrow(0, k, 1);
  CHECK(judged(poor, exact16.to(at::kBFloat16), exact16).verdict == Verdict::kDiffers);
}

TEST_CASE("Where the inputs' rounding moves the result, as much is let pass", "[judge]") {
  // 1 + x - 1 for tiny x: a right kernel may be far from golden.
  const at::Tensor golden = golden_values(20) * 1e-8;
  const at::Tensor cpu = golden.to(at::kFloat);
  const at::Tensor device = (golden + 3e-8).to(at::kFloat);
  JudgeContext context;
  context.op = "aten::op";
  context.tolerances = &kTable;
  context.golden = [&](std::string*) { return golden; };
  CHECK(judge(device, cpu, context).verdict == Verdict::kDiffers);
  int asked = 0;
  // Not all elements are golden's rounding, so it may be luck that the CPU is so near.
  const at::Tensor near = (golden * (1 + 2e-7)).to(at::kFloat);
  context.perturbed = [&](int sample, bool) {
    ++asked;
    return golden + golden_values(20, sample + 2) * 1e-8;
  };
  CHECK(judge(device, near, context).verdict == Verdict::kAgrees);
  CHECK(asked == 3);
  CHECK(judge((golden + 1e-5).to(at::kFloat), near, context).verdict == Verdict::kDiffers);
}

TEST_CASE("rounding that a kernel draws anew for changed inputs is let pass, an error of each time is not", "[judge]") {
  const at::Tensor golden = golden_values(50) * 1e-9;  // terms of about 1 that cancel
  const auto with_rounding = [&](int sample) { return (golden + golden_values(50, sample + 5) * 1e-7).to(at::kFloat); };
  const at::Tensor result = with_rounding(0);
  JudgeContext context;
  context.op = "aten::op";
  context.tolerances = &kTable;
  context.golden = [&](std::string*) { return golden; };
  context.perturbed = [&](int, bool) { return golden; };
  CHECK(judge(result, {}, context).verdict == Verdict::kDiffers);
  int asked = 0;
  context.rerun_perturbed = [&](int sample) {
    ++asked;
    return with_rounding(sample);
  };
  CHECK(judge(result, {}, context).verdict == Verdict::kAgrees);
  CHECK(asked == 4);

  const auto wrong = [&](int sample) { return with_rounding(sample) + 1e-5; };
  context.rerun_perturbed = wrong;
  CHECK(judge(wrong(0), {}, context).verdict == Verdict::kDiffers);

  // Something else each time: no rounding of its inputs explains that.
  asked = 0;
  context.rerun_perturbed = [&](int sample) {
    ++asked;
    return with_rounding(sample + 20);
  };
  CHECK(judge(result, {}, context).verdict == Verdict::kDiffers);
  CHECK(asked == 1);
}

TEST_CASE("CPU results are judged against float64 alone", "[judge]") {
  const at::Tensor golden = golden_values(1000);
  CHECK(judged(golden.to(at::kBFloat16), {}, golden).verdict == Verdict::kAgrees);
  CHECK(judged((golden * 1.05).to(at::kBFloat16), {}, golden).verdict == Verdict::kDiffers);
  CHECK(judged(golden.to(at::kFloat), {}, {}).verdict == Verdict::kNotJudged);
}

TEST_CASE("Without float64 the CPU alone decides, and the row says so", "[judge]") {
  const at::Tensor cpu = golden_values(1000).to(at::kFloat);
  const TensorVerdict near = judged(cpu * (1 + 1e-6), cpu, {});
  CHECK(near.verdict == Verdict::kAgrees);
  CHECK(near.method == AppliedMethod::kRelativeToCpu);
  CHECK(near.reason.find("no float64 run") == 0);
  CHECK(judged(cpu * 1.001, cpu, {}).verdict == Verdict::kDiffers);
}

TEST_CASE("Defect of others: NaN on both sides is no difference, on one side it is", "[judge][defects]") {
  for (const CompareMethod method :
       {CompareMethod::kRelative, CompareMethod::kAllclose, CompareMethod::kBitwise, CompareMethod::kUlp,
        CompareMethod::kMsprobeQuick, CompareMethod::kMsprobeAbsolute}) {
    INFO(to_string(method));
    at::Tensor golden = golden_values(100);
    golden[3] = kNan;
    golden[4] = kInf;
    const at::Tensor right = golden.to(at::kFloat);
    CHECK(judged(right.clone(), right, golden, method).verdict == Verdict::kAgrees);
    const at::Tensor moved = right.roll(0) * 1;
    CHECK(judged(moved, right, golden, method).verdict == Verdict::kAgrees);
    at::Tensor wrong = right.clone();
    wrong[5] = kNan;
    CHECK(judged(wrong, right, golden, method).verdict == Verdict::kDiffers);
    wrong = right.clone();
    wrong[4] = -kInf;
    CHECK(judged(wrong, right, golden, method).verdict == Verdict::kDiffers);
    wrong = right.clone();
    wrong[3] = 1;
    CHECK(judged(wrong, right, golden, method).verdict == Verdict::kDiffers);
    CHECK(judged(right.clone(), right, golden, method, /*nan_equal=*/false).verdict == Verdict::kDiffers);
  }
}

TEST_CASE("Defect of others: NaN does not spoil the cosine", "[judge][defects]") {
  at::Tensor a = golden_values(100).to(at::kFloat);
  a[0] = kNan;
  CHECK(diff_tensors(a, a).cosine == Approx(1));
}

TEST_CASE("Defect of others: a small inexact half value passes msprobe-absolute", "[judge][defects]") {
  const at::Tensor golden = at::full({4}, 3e-4).to(at::kHalf);
  const at::Tensor result = golden + 5e-6;  // under 2^-16, over 1e-16
  CHECK_FALSE(at::equal(result, golden));
  CHECK(judged(result, golden, {}, CompareMethod::kMsprobeAbsolute).verdict == Verdict::kAgrees);
  CHECK(judged(golden + 1e-4, golden, {}, CompareMethod::kMsprobeAbsolute).verdict == Verdict::kDiffers);
}

TEST_CASE("Defect of others: a golden zero counts in the relative error", "[judge][defects]") {
  at::Tensor golden = at::ones({100}, at::kFloat);
  golden.narrow(0, 0, 50).zero_();
  const at::Tensor result = golden + 0.01;
  const TensorDiff diff = diff_tensors(result, golden, {.relative_limits = {0.5}});
  CHECK(diff.max_rel == kInf);
  CHECK(diff.over_relative == std::vector<int64_t>{50});
  CHECK(judged(result, golden, {}, CompareMethod::kMsprobeQuick).verdict == Verdict::kDiffers);
}

TEST_CASE("Defect of others: empty and one-element tensors have a verdict", "[judge][defects]") {
  for (const CompareMethod method :
       {CompareMethod::kRelative, CompareMethod::kAllclose, CompareMethod::kBitwise, CompareMethod::kUlp,
        CompareMethod::kMsprobeQuick, CompareMethod::kMsprobeAbsolute}) {
    INFO(to_string(method));
    const at::Tensor none = at::zeros({0, 3}, at::kFloat);
    CHECK(judged(none, none.clone(), none.to(at::kDouble), method).verdict == Verdict::kAgrees);
    const at::Tensor scalar = at::full({}, 2.5, at::kFloat);
    CHECK(judged(scalar * 1, scalar, scalar.to(at::kDouble), method).verdict == Verdict::kAgrees);
    CHECK(judged(scalar * -1, scalar, scalar.to(at::kDouble), method).verdict == Verdict::kDiffers);
  }
}

TEST_CASE("Defect of others: complex numbers have a cosine and are judged", "[judge][defects]") {
  const at::Tensor golden = at::complex(golden_values(200), golden_values(200, 3));
  const at::Tensor right = golden.to(at::kComplexFloat);
  CHECK(diff_tensors(right, golden).cosine == Approx(1));
  CHECK(diff_tensors(-right, golden).cosine == Approx(-1));
  CHECK(judged(right * 1, right, golden).verdict == Verdict::kAgrees);
  CHECK(judged(right * 1.01, right, golden).verdict == Verdict::kDiffers);
  CHECK(judged(right.conj().resolve_conj(), right, golden).verdict == Verdict::kDiffers);
}

TEST_CASE("Defect of others: unsigned differences do not wrap", "[judge][defects]") {
  const at::Tensor zero = at::zeros({3}, at::kByte), ones = at::ones({3}, at::kByte);
  CHECK(diff_tensors(zero, ones).max_abs == 1);
  CHECK(judged(zero, ones, {}).verdict == Verdict::kDiffers);
  CHECK(judged(zero, ones, {}).method == AppliedMethod::kBitwise);
}

TEST_CASE("Defect of others: each dtype has its own tolerance", "[judge][defects]") {
  const at::Tensor golden = at::ones({100});
  const auto verdict = [&](at::ScalarType dtype, double error) {
    const at::Tensor right = golden.to(dtype);
    return judged((golden.to(at::kDouble) + error).to(dtype), right, {}, CompareMethod::kAllclose).verdict;
  };
  CHECK(verdict(at::kDouble, 1e-6) == Verdict::kDiffers);
  CHECK(verdict(at::kFloat, 1e-6) == Verdict::kAgrees);
  CHECK(verdict(at::kFloat, 1e-3) == Verdict::kDiffers);
  CHECK(verdict(at::kBFloat16, 1e-3) == Verdict::kAgrees);
}

TEST_CASE("Another shape, dtype or layout is a failure of its own kind", "[judge]") {
  const at::Tensor right = golden_values(6).to(at::kFloat);
  CHECK(judged(right.reshape({2, 3}), right, {}).kind == "shape");
  CHECK(judged(right.to(at::kDouble), right, {}).kind == "dtype");
  CHECK(judged(right.to_sparse(), right, {}).kind == "layout");
}

TEST_CASE("A result too large for the dtype is an infinity in golden, too", "[judge]") {
  const at::Tensor golden = at::full({20}, 1e5, at::kDouble);
  const at::Tensor right = golden.to(at::kHalf);
  CHECK(judged(right * 1, right, golden).verdict == Verdict::kAgrees);
  // The CPU overflows on the way, the device does not: both are right.
  const at::Tensor fine = at::full({20}, 100, at::kDouble);
  at::Tensor overflowed = fine.to(at::kHalf);
  overflowed[2] = kInf;
  CHECK(judged(fine.to(at::kHalf), overflowed, fine).verdict == Verdict::kAgrees);
  CHECK(judged(overflowed, fine.to(at::kHalf), fine).verdict == Verdict::kDiffers);
}

TEST_CASE("ULP and msprobe's quick method follow their numbers", "[judge]") {
  const at::Tensor golden = at::full({10000}, 1.0, at::kDouble);
  at::Tensor half = golden.to(at::kHalf);
  half.narrow(0, 0, 9) += 0.01;
  CHECK(judged(half, {}, golden, CompareMethod::kUlp).verdict == Verdict::kAgrees);
  half.narrow(0, 0, 20) += 0.01;
  CHECK(judged(half, {}, golden, CompareMethod::kUlp).verdict == Verdict::kDiffers);

  const at::Tensor single = golden.to(at::kFloat);
  CHECK(judged(single + 5e-4, single, {}, CompareMethod::kMsprobeQuick).verdict == Verdict::kAgrees);
  CHECK(judged(single + 5e-3, single, {}, CompareMethod::kMsprobeQuick).verdict == Verdict::kDiffers);
  at::Tensor few = single.clone();
  few.narrow(0, 0, 5) += 5e-3;
  const TensorVerdict warned = judged(few, single, {}, CompareMethod::kMsprobeQuick);
  CHECK(warned.verdict == Verdict::kAgrees);
  CHECK(warned.reason.find("warning") == 0);
}

TEST_CASE("A call that copies elements may be off by no unit, but may flush the smallest numbers", "[judge]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    INFO(dtype);
    const Rounding rounding = rounding_of(dtype);
    at::Tensor input = rounded(golden_values(50) + 8, dtype);
    input[3] = rounding.least / 2;
    CallFacts facts;
    facts.options.tolerances = &kTable;
    facts.before = {input};
    facts.args = make_list({input});
    const auto verdict_of = [&](const char* name, const at::Tensor& result) {
      facts.name = name;
      RunOutcome observed;
      observed.result = result;
      observed.inputs = {input};
      observed.written = {false};
      const RunAgain again = [&](const RunVariant& variant) {
        RunOutcome run = observed;
        run.result = input.to(variant.in_own_dtypes() ? dtype : at::kDouble).clone();
        run.aliases = {{}};
        run.strides = {{1}};
        return run;
      };
      observed.aliases = {{}};
      observed.strides = {{1}};
      const std::vector<Check> checks = CallJudge(facts, observed, again).forward();
      REQUIRE(checks.size() == 1);
      return checks.front().judgement.verdict;
    };
    const at::Tensor flushed = input.clone(), off = input.clone();
    flushed[3] = 0;
    off[7] = off[7] * (1 + rounding.unit);
    REQUIRE_FALSE(off[7].equal(input[7]));
    CHECK(verdict_of("torch.cat", input.clone()) == Verdict::kAgrees);
    CHECK(verdict_of("torch.cat", flushed) == Verdict::kAgrees);
    CHECK(verdict_of("torch.cat", off) == Verdict::kDiffers);
    CHECK(verdict_of("torch.sigmoid", off) == Verdict::kAgrees);
  }
}

TEST_CASE("Gradients of results whose order is free are not judged, even if they are real", "[judge]") {
  CallFacts facts;
  facts.name = "torch.linalg.eig";
  facts.options.tolerances = &kTable;
  facts.before = {at::ones({2, 2})};
  facts.args = make_list({facts.before[0]});
  RunOutcome observed;
  observed.gradients = {at::full({2, 2}, 3.0)};
  const RunAgain again = [](const RunVariant&) {
    RunOutcome run;
    run.gradients = {at::full({2, 2}, 4.0)};
    return run;
  };
  const std::vector<Check> checks = CallJudge(facts, observed, again).gradients();
  REQUIRE(checks.size() == 1);
  CHECK(checks.front().judgement.verdict == Verdict::kNotJudged);
  CHECK(checks.front().judgement.unjudged == Unjudged::kUndetermined);
}

TEST_CASE("Calls that only read metadata are known by torch's own names", "[op_traits]") {
  for (const auto* reader : {"torch.Tensor.size", "torch.Tensor.dim", "torch.Tensor.shape.__get__",
                             "torch.Tensor.data_ptr", "torch.Tensor.requires_grad.__get__", "torch.Tensor.__repr__",
                             "torch.numel", "aten::size.int", "aten::is_same_size", "torch.Tensor.backward",
                             "torch.Tensor.grad.__set__", "torch.ops.profiler._record_function_enter_new"}) {
    INFO(reader);
    CHECK(is_metadata_op(reader));
  }
  for (const auto* worker :
       {"torch.Tensor.item", "torch.Tensor.tolist", "torch.Tensor.detach", "torch.Tensor.data.__get__",
        "torch.Tensor.data.__set__", "torch.Tensor.T.__get__", "torch.Tensor.real.__get__", "torch.Tensor.__getitem__",
        "torch.Tensor.type", "torch.Tensor.is_nonzero", "torch.equal", "aten::item", "aten::_local_scalar_dense",
        "aten::detach", "torch.Tensor.add", "flash::backward", "torch.ops.mine.size", "mkldnn::data_ptr", ""}) {
    INFO(worker);
    CHECK_FALSE(is_metadata_op(worker));
  }
}

TEST_CASE("Names of both levels mean the same operator", "[op_traits]") {
  CHECK(base_name("aten::max.dim") == "max");
  CHECK(base_name("torch.Tensor.max") == "max");
  CHECK(base_name("torch.Tensor.real.__get__") == "real");
  CHECK(base_name("torch.ops.aten.new_empty_strided.default") == "new_empty_strided");
  CHECK(base_name("torch.ops.aten.add") == "add");
  CHECK(returns_uninitialized("empty_like"));
  CHECK_FALSE(returns_uninitialized("zeros"));
  const at::Tensor a = at::zeros({8, 100}), b = at::zeros({100, 4});
  CHECK(reduced_elements("mm", {a, b}, at::zeros({8, 4})) == 100);
  CHECK(reduced_elements("sum", {a}, at::zeros({8})) == 100);
  CHECK(reduced_elements("add", {a, a}, a) == 1);
}
