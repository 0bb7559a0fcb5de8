#include "compare/check_text.h"
#include "hooks/text_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace op_tools {
namespace {

Value list_of(at::IntArrayRef numbers) {
  return make_list(Values(numbers.begin(), numbers.end()));
}

bool has_numbers(const Judgement& judgement) {
  return judgement.diff.structure.empty() && !judgement.method.empty();
}

std::string worst_text(const TensorDiff& diff) {
  if (!diff.has_worst) return {};
  std::string index = "[";
  for (const int64_t i : diff.worst_index) index += (index.size() > 1 ? ", " : "") + std::to_string(i);
  return "at " + index + "] " + diff.worst_result + " instead of " + diff.worst_golden;
}

}  // namespace

std::string explain(const Judgement& judgement) {
  std::vector<std::string> parts;
  if (!judgement.reason.empty()) parts.push_back(judgement.reason);
  if (!judgement.deciding.empty() && judgement.kind == "values") {
    parts.push_back(judgement.deciding + formatted(" %.4g, limit %.4g", judgement.number, judgement.limit));
  }
  if (const std::string worst = worst_text(judgement.diff); !worst.empty()) parts.push_back(worst);
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

double share_of_limit(const Judgement& judgement) {
  if (judgement.verdict == Verdict::kDiffers) {
    return judgement.limit > 0 ? std::max(1.0, judgement.number / judgement.limit) : HUGE_VAL;
  }
  return judgement.limit > 0 ? judgement.number / judgement.limit : 0;
}

std::string check_line(const std::string& op, const Check& check) {
  const Judgement& judgement = check.judgement;
  std::string name = op, number;
  if (check.what.find(' ') == std::string::npos)
    number = check.what;  // "0th": in a column of its own
  else
    name += " " + check.what;
  std::string line = number.empty() ? formatted("OpAutoCompareHook: %-50s ", name.c_str())
                                    : formatted("OpAutoCompareHook: %-46s %3s ", name.c_str(), number.c_str());
  if (judgement.verdict == Verdict::kNotComparable) return line + "not comparable (" + judgement.reason + ")";
  const bool fails = judgement.verdict == Verdict::kDiffers;
  line += formatted("allclose: %s    max_diff: %20.9f", fails ? "False" : "True",
                    has_numbers(judgement) ? judgement.diff.max_abs : std::nan(""));
  return fails || !judgement.reason.empty() ? line + "    (" + explain(judgement) + ")" : line;
}

std::vector<std::string> check_column_names() {
  return {"what",
          "verdict",
          "kind",
          "reason",
          "method",
          "thresholds",
          "deciding",
          "number",
          "limit",
          "dtype",
          "shape",
          "strides",
          "numel",
          "bit_equal",
          "max_abs",
          "max_rel",
          "mean_abs",
          "rmse",
          "cosine",
          "max_ulp",
          "mean_ulp",
          "outside",
          "error_rmse",
          "error_max",
          "cpu_error_rmse",
          "cpu_error_max",
          "result_nan",
          "result_inf",
          "reference_nan",
          "reference_inf",
          "nonfinite_mismatches",
          "worst_index",
          "worst_result",
          "worst_reference"};
}

std::vector<std::pair<Value, Value>> check_columns(const Check& check) {
  const Judgement& judgement = check.judgement;
  const TensorDiff& diff = judgement.diff;
  std::vector<std::pair<Value, Value>> items;
  items.reserve(40);
  const auto add = [&](const char* name, Value value) { items.emplace_back(name, std::move(value)); };
  add("what", check.what.empty() ? "output" : check.what);
  add("verdict", std::string(to_string(judgement.verdict)));
  add("kind", judgement.kind);
  add("reason", judgement.reason);
  add("method", judgement.method);
  add("thresholds", judgement.thresholds);
  add("deciding", judgement.deciding);
  add("number", judgement.number);
  add("limit", judgement.limit);
  if (check.form) {
    add("dtype", torch_name(check.form->dtype));
    add("shape", list_of(check.form->sizes));
    if (check.form->is_strided) add("strides", list_of(check.form->strides));
  }
  if (has_numbers(judgement) && judgement.verdict != Verdict::kNotComparable) {
    add("numel", diff.numel);
    add("bit_equal", diff.bits_equal);
    add("max_abs", diff.max_abs);
    add("max_rel", diff.max_rel);
    add("mean_abs", diff.mean_abs);
    add("rmse", diff.rmse);
    add("cosine", diff.cosine);
    add("max_ulp", diff.max_ulp);
    add("mean_ulp", diff.mean_ulp);
    add("outside", diff.outside);
    add("result_nan", diff.result.nan);
    add("result_inf", diff.result.pos_inf + diff.result.neg_inf);
    add("reference_nan", diff.golden.nan);
    add("reference_inf", diff.golden.pos_inf + diff.golden.neg_inf);
    add("nonfinite_mismatches", diff.nonfinite_mismatches);
  }
  if (judgement.error) {
    add("error_rmse", judgement.error->rmse);
    add("error_max", judgement.error->max_abs);
  }
  if (judgement.reference_error) {
    add("cpu_error_rmse", judgement.reference_error->rmse);
    add("cpu_error_max", judgement.reference_error->max_abs);
  }
  if (diff.has_worst) {
    add("worst_index", list_of(diff.worst_index));
    add("worst_result", diff.worst_result);
    add("worst_reference", diff.worst_golden);
  }
  return items;
}

}  // namespace op_tools
