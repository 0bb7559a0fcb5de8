#include "observe/overflow_result.h"

#include <algorithm>
#include <utility>

namespace op_tools {
namespace {

std::string counts_text(const OverflowResult::Finding& finding) {
  if (finding.nan < 0) return "overwritten before it was read";
  std::string text;
  const auto add = [&](int64_t count, const char* what) {
    if (count > 0) text.append(text.empty() ? "" : ", ").append(std::to_string(count)).append(what);
  };
  add(finding.nan, " nan");
  add(finding.pos_inf, " inf");
  add(finding.neg_inf, " -inf");
  return text;
}

Value numbers(c10::ArrayRef<int64_t> values) {
  return make_list(Values(values.begin(), values.end()));
}

}  // namespace

Value to_value(const OverflowResult::Finding& finding) {
  const auto count = [](int64_t number) { return number < 0 ? Value() : Value(number); };
  return make_dict({{"kind", finding.producer ? "producer" : "propagator"},
                    {"expected", finding.expected},
                    {"op", finding.call.name},
                    {"id", static_cast<int64_t>(finding.call.id)},
                    {"step", finding.call.step},
                    {"phase", std::string(to_string(finding.call.phase))},
                    {"output", static_cast<int64_t>(finding.output)},
                    {"dtype", torch_name(finding.tensor.dtype)},
                    {"shape", numbers(finding.tensor.shape)},
                    {"nan", count(finding.nan)},
                    {"pos_inf", count(finding.pos_inf)},
                    {"neg_inf", count(finding.neg_inf)},
                    {"first", finding.nan < 0 ? Value() : numbers(finding.first)},
                    {"module", finding.call.module.empty() ? Value() : Value(finding.call.module)},
                    {"line", finding.call.stack.empty() ? Value() : Value(finding.call.line())},
                    {"saved", finding.saved.empty() ? Value() : Value(finding.saved)},
                    {"not_saved", finding.not_saved.empty() ? Value() : Value(finding.not_saved)}});
}

Value to_value(const OverflowResult& result) {
  Values rows;
  for (const OverflowResult::Finding& finding : result.findings) rows.push_back(to_value(finding));
  const auto number = [](uint64_t count) { return static_cast<int64_t>(count); };
  return make_dict({{"rows", make_list(std::move(rows))},
                    {"calls", number(result.calls)},
                    {"producers", number(result.producers)},
                    {"propagators", number(result.propagators)},
                    {"expected", number(result.expected)},
                    {"root", result.root}});
}

std::string sentence_of(const OverflowResult::Finding& finding) {
  const CallInfo& call = finding.call;
  const std::vector<int64_t> shape(finding.tensor.shape.begin(), finding.tensor.shape.end());
  std::string text = call.name;
  text.append(" ").append(to_string(call.phase)).append(" made ").append(counts_text(finding));
  text += " in output " + std::to_string(finding.output) + " (" + torch_name(finding.tensor.dtype) + ", " +
          describe(Size{shape}) + ") from finite inputs";
  if (!call.module.empty()) text += ", in " + call.module;
  if (!call.stack.empty()) text += ", called from " + call.line();
  if (!finding.saved.empty()) text += "; saved in " + finding.saved;
  return text;
}

std::string closing_line(const OverflowResult& result) {
  std::string text = "OpOverflowCheck: " + std::to_string(result.calls) + " calls, " +
                     std::to_string(result.producers) + " made NaN or infinities from finite inputs, " +
                     std::to_string(result.propagators) + " passed them on";
  if (result.expected) text += ", " + std::to_string(result.expected) + " expected in backward";
  const auto first = std::find_if(result.findings.begin(), result.findings.end(),
                                  [](const OverflowResult::Finding& one) { return one.producer && !one.expected; });
  if (first != result.findings.end())
    text += "; first: " + first->call.name + " in step " + std::to_string(first->call.step);
  if (!result.root.empty()) text += "; " + result.root + "/overflow.jsonl";
  return text;
}

}  // namespace op_tools
