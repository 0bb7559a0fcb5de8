#include "compare/judge.h"

#include <array>
#include <utility>

#include "compare/judge_methods.h"

namespace op_tools {

AppliedMethod applied(CompareMethod method) {
  switch (method) {
    case CompareMethod::kRelative:
      return AppliedMethod::kRelative;
    case CompareMethod::kAllclose:
      return AppliedMethod::kAllclose;
    case CompareMethod::kBitwise:
      return AppliedMethod::kBitwise;
    case CompareMethod::kUlp:
      return AppliedMethod::kUlp;
    case CompareMethod::kMsprobeQuick:
      return AppliedMethod::kMsprobeQuick;
    default:
      return AppliedMethod::kMsprobeAbsolute;
  }
}

Token token_of(Deciding deciding) {
  constexpr std::array<Token, 18> kTokens{{{"", ""},
                                           {"bits", "bits"},
                                           {"nonfinite", "NaN or infinite"},
                                           {"rmse", "rmse"},
                                           {"max_error", "max error"},
                                           {"max_ulp", "max ulp"},
                                           {"elements", "elements outside"},
                                           {"mean_ulp", "mean ULP"},
                                           {"share_over_ulp", "share over 1 ULP"},
                                           {"cosine", "cosine"},
                                           {"max_abs", "max abs"},
                                           {"share_over_relative", "share over the relative limit"},
                                           {"distance", "Kolmogorov-Smirnov distance"},
                                           {"hits", "hits too many or too few"},
                                           {"range", "value outside the range"},
                                           {"dropped", "neither dropped nor scaled"},
                                           {"mean", "distance of the mean"},
                                           {"missing", "missing numbers"}}};
  return kTokens[static_cast<size_t>(deciding)];
}

std::string_view to_string(AppliedMethod method) {
  constexpr std::array<std::string_view, 9> kNames{"",    "relative",      "relative_to_cpu",  "allclose",   "bitwise",
                                                   "ulp", "msprobe-quick", "msprobe-absolute", "statistical"};
  return kNames[static_cast<size_t>(method)];
}

TensorVerdict differs(std::string kind, std::string reason) {
  TensorVerdict verdict;
  verdict.verdict = Verdict::kDiffers;
  verdict.kind = std::move(kind);
  verdict.reason = std::move(reason);
  verdict.diff.bits_equal = false;
  return verdict;
}

TensorVerdict not_judged(Unjudged why, std::string reason) {
  TensorVerdict verdict;
  verdict.verdict = Verdict::kNotJudged;
  verdict.unjudged = why;
  verdict.reason = std::move(reason);
  verdict.diff.bits_equal = false;
  return verdict;
}

TensorVerdict judge(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context) {
  const bool exact = rounding_of(result.scalar_type()).unit == 0;
  CompareMethod method = context.method;
  if (method == CompareMethod::kRelative && context.tolerances &&
      context.tolerances->overridden(context.op, result.scalar_type())) {
    method = CompareMethod::kAllclose;  // who sets a tolerance wants it
  }
  if (exact) method = CompareMethod::kBitwise;
  if (reference.defined()) {
    const auto other = [&](const char* kind, auto got, auto expected) {
      std::string text = std::string(kind) + " ";
      return differs(kind, text + c10::str(got) + ", expected " + c10::str(expected));
    };
    if (result.sizes() != reference.sizes()) return other("shape", result.sizes(), reference.sizes());
    if (result.scalar_type() != reference.scalar_type()) {
      return other("dtype", result.scalar_type(), reference.scalar_type());
    }
    if (result.layout() != reference.layout()) return other("layout", result.layout(), reference.layout());
    if (context.nan_equal && !context.hands_out && same_bits(result, reference)) {
      TensorVerdict same;
      same.method = applied(method);
      same.deciding = Deciding::kBits;
      same.thresholds = "the same bits as the CPU's";
      same.diff.numel = result.numel();
      return same;
    }
  }
  if (method == CompareMethod::kRelative) return judge_relative(result, reference, context);
  return judge_by_difference(result, reference, context, method);
}

}  // namespace op_tools
