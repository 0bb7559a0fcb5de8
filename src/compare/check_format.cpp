#include "compare/check_format.h"
#include "base/text_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace op_tools {
namespace {

bool has_numbers(const TensorVerdict& judgement) {
  return judgement.diff.structure.empty() && judgement.method != AppliedMethod::kNone;
}

std::string worst_text(const TensorDiff& diff) {
  if (!diff.has_worst) return {};
  std::string index = "[";
  for (const int64_t i : diff.worst_index) index += (index.size() > 1 ? ", " : "") + std::to_string(i);
  return "at " + index + "] " + diff.worst_result + " instead of " + diff.worst_golden;
}

}  // namespace

std::string explain(const TensorVerdict& judgement) {
  std::vector<std::string> parts;
  if (!judgement.reason.empty()) parts.push_back(judgement.reason);
  if (judgement.deciding != Deciding::kNothing && judgement.kind == "values") {
    parts.push_back(std::string(token_of(judgement.deciding).help) +
                    formatted(" %.4g, limit %.4g", judgement.number, judgement.limit));
  }
  if (const std::string worst = worst_text(judgement.diff); !worst.empty()) parts.push_back(worst);
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

double share_of_limit(const TensorVerdict& judgement) {
  if (judgement.verdict == Verdict::kDiffers) {
    return judgement.limit > 0 ? std::max(1.0, judgement.number / judgement.limit) : HUGE_VAL;
  }
  return judgement.limit > 0 ? judgement.number / judgement.limit : 0;
}

std::string check_line(const std::string& op, const Check& check) {
  const TensorVerdict& judgement = check.judgement;
  std::string name = op, number;
  if (check.subject.find(' ') == std::string::npos)
    number = check.subject;  // "0th": in a column of its own
  else
    name += " " + check.subject;
  std::string line = number.empty() ? formatted("OpAutoCompareHook: %-50s ", name.c_str())
                                    : formatted("OpAutoCompareHook: %-46s %3s ", name.c_str(), number.c_str());
  if (judgement.verdict == Verdict::kNotJudged) return line + "not judged (" + judgement.reason + ")";
  const bool fails = judgement.verdict == Verdict::kDiffers;
  line += formatted("allclose: %s    max_diff: %20.9f", fails ? "False" : "True",
                    has_numbers(judgement) ? judgement.diff.max_abs : std::nan(""));
  return fails || !judgement.reason.empty() ? line + "    (" + explain(judgement) + ")" : line;
}

std::vector<std::string> check_column_names() {
  return {"what",        "part",         "index",          "verdict",        "kind",
          "not_judged",  "reason",       "method",         "thresholds",     "deciding",
          "number",      "limit",        "wide_limit",     "dtype",          "shape",
          "strides",     "numel",        "bit_equal",      "max_abs",        "max_rel",
          "mean_abs",    "rmse",         "cosine",         "max_ulp",        "mean_ulp",
          "outside",     "error_rmse",   "error_max",      "cpu_error_rmse", "cpu_error_max",
          "result_nan",  "result_inf",   "reference_nan",  "reference_inf",  "nonfinite_mismatches",
          "worst_index", "worst_result", "worst_reference"};
}

void put_check(const Check& check, RowSink& row) {
  const TensorVerdict& judgement = check.judgement;
  const TensorDiff& diff = judgement.diff;
  row.put("what", check.subject.empty() ? "output" : std::string_view(check.subject));
  row.put("part", to_string(check.part));
  if (check.index) row.put("index", static_cast<int64_t>(*check.index));
  row.put("verdict", token_of(judgement.verdict).name);
  row.put("kind", judgement.kind);
  if (judgement.verdict == Verdict::kNotJudged) row.put("not_judged", token_of(judgement.unjudged).name);
  row.put("reason", judgement.reason);
  row.put("method", to_string(judgement.method));
  row.put("thresholds", judgement.thresholds);
  row.put("deciding", token_of(judgement.deciding).name);
  row.put("number", judgement.number);
  row.put("limit", judgement.limit);
  if (judgement.verdict == Verdict::kAgrees) row.put("wide_limit", judgement.wide_limit);
  if (check.form) {
    row.put("dtype", torch_name(check.form->dtype));
    row.put("shape", check.form->shape);
    if (check.form->layout == at::kStrided) row.put("strides", check.form->stride);
  }
  const bool numbers = has_numbers(judgement) && judgement.verdict != Verdict::kNotJudged;
  if (numbers) {
    row.put("numel", diff.numel);
    row.put("bit_equal", diff.bits_equal);
    row.put("max_abs", diff.max_abs);
    row.put("max_rel", diff.max_rel);
    row.put("mean_abs", diff.mean_abs);
    row.put("rmse", diff.rmse);
    row.put("cosine", diff.cosine);
    row.put("max_ulp", diff.max_ulp);
    row.put("mean_ulp", diff.mean_ulp);
    row.put("outside", diff.outside);
  }
  if (judgement.error) {
    row.put("error_rmse", judgement.error->rmse);
    row.put("error_max", judgement.error->max_abs);
  }
  if (judgement.reference_error) {
    row.put("cpu_error_rmse", judgement.reference_error->rmse);
    row.put("cpu_error_max", judgement.reference_error->max_abs);
  }
  if (numbers) {
    row.put("result_nan", diff.result.nan);
    row.put("result_inf", diff.result.pos_inf + diff.result.neg_inf);
    row.put("reference_nan", diff.golden.nan);
    row.put("reference_inf", diff.golden.pos_inf + diff.golden.neg_inf);
    row.put("nonfinite_mismatches", diff.nonfinite_mismatches);
  }
  if (diff.has_worst) {
    row.put("worst_index", diff.worst_index);
    row.put("worst_result", diff.worst_result);
    row.put("worst_reference", diff.worst_golden);
  }
}

std::vector<std::pair<Value, Value>> check_columns(const Check& check) {
  RowValues row;
  put_check(check, row);
  return std::move(row.items);
}

}  // namespace op_tools
