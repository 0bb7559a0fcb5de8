#include "observe/overflow_result.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "base/run_folder.h"

namespace op_tools {
namespace {

std::string counts_text(const OverflowResult::Finding& finding) {
  if (finding.nan < 0) return "overwritten before it was read";
  std::string text;
  const auto add = [&](int64_t count, const char* kind) {
    if (count > 0) text.append(text.empty() ? "" : ", ").append(std::to_string(count)).append(kind);
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
          {"kind", [](const Finding& finding) { return finding.producer ? "producer" : "propagator"; },
           "producer: its inputs were finite; propagator: it was given such values"},
          {"expected", &Finding::expected, "in backward, with allow_in_backward_with_scaler"},
          {"op", [](const Finding& finding) { return finding.call.name; }, "the operator"},
          {"id", [](const Finding& finding) { return finding.call.id; }, "of the call"},
          {"step", [](const Finding& finding) { return finding.call.step; }, "of the call"},
          {"phase", [](const Finding& finding) { return to_string(finding.call.phase); }, "forward or backward"},
          {"output", &Finding::output,
           "which of the call's output tensors (then: of the inputs that it wrote), or of its input gradients"},
          {"dtype", [](const Finding& finding) { return torch_name(finding.tensor.dtype); }, "of the output"},
          {"shape",
           [](const Finding& finding) {
             return std::vector<int64_t>(finding.tensor.shape.begin(), finding.tensor.shape.end());
           },
           "of the output"},
          {"nan", [](const Finding& finding) { return unless_unknown(finding.nan); },
           "elements; None: the program had overwritten the tensor before it was read"},
          {"pos_inf", [](const Finding& finding) { return unless_unknown(finding.pos_inf); }, "likewise"},
          {"neg_inf", [](const Finding& finding) { return unless_unknown(finding.neg_inf); }, "likewise"},
          {"first",
           [](const Finding& finding) { return finding.nan < 0 ? std::nullopt : std::optional(finding.first); },
           "index of the first such element"},
          {"module", [](const Finding& finding) { return unless_empty(finding.call.module); },
           "as in ResNet.layer3.0.conv1"},
          {"line", [](const Finding& finding) { return unless_empty(finding.call.line()); }, "of the program"},
          {"saved", [](const Finding& finding) { return unless_empty(finding.saved); },
           "folder of the producer's call, for run_op_from_data"},
          {"not_saved", [](const Finding& finding) { return unless_empty(finding.not_saved); },
           "why a producer was not"},
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
                    {"root", result.root},
                    {"failure", result.failure}});
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
  if (!finding.saved.empty()) text += "; saved in " + shown_path(finding.saved);
  return printable(text);
}

std::string closing_line(const OverflowResult& result) {
  std::string text = "OpOverflowCheck: " + std::to_string(result.calls) + " calls, " +
                     std::to_string(result.producers) + " made NaN or infinities from finite inputs, " +
                     std::to_string(result.propagators) + " passed them on";
  if (result.expected) text += ", " + std::to_string(result.expected) + " expected in backward";
  if (result.came_in) text += ", " + std::to_string(result.came_in) + " tensors had them that no call seen here made";
  const auto first =
      std::find_if(result.findings.begin(), result.findings.end(),
                   [](const OverflowResult::Finding& finding) { return finding.producer && !finding.expected; });
  if (first != result.findings.end())
    text += "; first: " + first->call.name + " in step " + std::to_string(first->call.step);
  if (!result.root.empty() && result.failure.empty()) text += "; " + shown_path(result.root) + "/overflow.jsonl";
  return text;
}

}  // namespace op_tools
