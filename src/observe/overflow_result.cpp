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
      "One output with NaN or infinities.",
      {
          {"kind", [](const Finding& one) { return one.producer ? "producer" : "propagator"; },
           "producer: its inputs were finite; propagator: it was given such values"},
          {"expected", &Finding::expected, "in backward, with allow_in_backward_with_scaler"},
          {"op", &Finding::op, "the operator"},
          {"id", &Finding::id, "of the call"},
          {"step", &Finding::step, "of the call"},
          {"phase", [](const Finding& one) { return one.backward ? "backward" : "forward"; }, "forward or backward"},
          {"output", &Finding::output,
           "which of the call's output tensors (then: of the inputs that it wrote), or of its input gradients"},
          {"dtype", &Finding::dtype, "of the output"},
          {"shape", &Finding::shape, "of the output"},
          {"nan", [](const Finding& one) { return unless_unknown(one.nan); },
           "elements; None: the program had overwritten the tensor before it was read"},
          {"pos_inf", [](const Finding& one) { return unless_unknown(one.pos_inf); }, "likewise"},
          {"neg_inf", [](const Finding& one) { return unless_unknown(one.neg_inf); }, "likewise"},
          {"first", [](const Finding& one) { return one.nan < 0 ? std::nullopt : std::optional(one.first); },
           "index of the first such element"},
          {"module", [](const Finding& one) { return unless_empty(one.module); }, "as in ResNet.layer3.0.conv1"},
          {"line", [](const Finding& one) { return unless_empty(one.stack.empty() ? "" : one.stack.front()); },
           "of the program"},
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
                    {"root", result.root}});
}

std::string sentence_of(const OverflowResult::Finding& finding) {
  std::string text = finding.op + (finding.backward ? " backward" : " forward") + " made " + counts_text(finding) +
                     " in output " + std::to_string(finding.output) + " (" + finding.dtype + ", " +
                     describe(Size{finding.shape}) + ") from finite inputs";
  if (!finding.module.empty()) text += ", in " + finding.module;
  if (!finding.stack.empty()) text += ", called from " + finding.stack.front();
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
  if (first != result.findings.end()) text += "; first: " + first->op + " in step " + std::to_string(first->step);
  if (!result.root.empty()) text += "; " + result.root + "/overflow.jsonl";
  return text;
}

}  // namespace op_tools
