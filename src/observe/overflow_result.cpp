#include "observe/overflow_result.h"

#include <algorithm>
#include <optional>
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

using Finding = OverflowResult::Finding;

std::optional<std::string> unless_empty(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}
std::optional<int64_t> unless_unknown(int64_t count) {
  return count < 0 ? std::nullopt : std::optional(count);
}

}  // namespace

const Columns<Finding>& Finding::columns() {
  static const Columns<Finding> all{
      "OverflowRow",
      "An output with NaN or infinities.",
      {
          {"kind", [](const Finding& one) { return one.producer ? "producer" : "propagator"; },
           "producer: its inputs were finite; propagator: it was given such values"},
          {"expected", &Finding::expected, "in backward, with allow_in_backward_with_scaler"},
          {"op", [](const Finding& one) { return one.call.name; }, "the operator"},
          {"id", [](const Finding& one) { return one.call.id; }, "of the call"},
          {"step", [](const Finding& one) { return one.call.step; }, "of the call"},
          {"phase", [](const Finding& one) { return to_string(one.call.phase); }, "forward or backward"},
          {"output", &Finding::output,
           "which of the call's output tensors (then: of the inputs that it wrote), or of its input gradients"},
          {"dtype", [](const Finding& one) { return torch_name(one.tensor.dtype); }, "of the output"},
          {"shape",
           [](const Finding& one) { return std::vector<int64_t>(one.tensor.shape.begin(), one.tensor.shape.end()); },
           "of the output"},
          {"nan", [](const Finding& one) { return unless_unknown(one.nan); },
           "elements; None: the program had overwritten the tensor before it was read"},
          {"pos_inf", [](const Finding& one) { return unless_unknown(one.pos_inf); }, "likewise"},
          {"neg_inf", [](const Finding& one) { return unless_unknown(one.neg_inf); }, "likewise"},
          {"first", [](const Finding& one) { return one.nan < 0 ? std::nullopt : std::optional(one.first); },
           "index of the first such element"},
          {"module", [](const Finding& one) { return unless_empty(one.call.module); }, "as in ResNet.layer3.0.conv1"},
          {"line", [](const Finding& one) { return unless_empty(one.call.line()); }, "of the program"},
          {"saved", [](const Finding& one) { return unless_empty(one.saved); },
           "folder of the producer's call, for run_op_from_data"},
          {"not_saved", [](const Finding& one) { return unless_empty(one.not_saved); }, "why a producer was not"},
      }};
  return all;
}

Value to_value(const OverflowResult& result) {
  const auto number = [](uint64_t count) { return static_cast<int64_t>(count); };
  return make_dict({{"rows", Finding::columns().values(result.findings)},
                    {"calls", number(result.calls)},
                    {"producers", number(result.producers)},
                    {"propagators", number(result.propagators)},
                    {"expected", number(result.expected)},
                    {"came_in", number(result.came_in)},
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
  if (result.came_in) text += ", " + std::to_string(result.came_in) + " tensors had them that no call seen here made";
  const auto first = std::find_if(result.findings.begin(), result.findings.end(),
                                  [](const OverflowResult::Finding& one) { return one.producer && !one.expected; });
  if (first != result.findings.end())
    text += "; first: " + first->call.name + " in step " + std::to_string(first->call.step);
  if (!result.root.empty()) text += "; " + result.root + "/overflow.jsonl";
  return text;
}

}  // namespace op_tools
