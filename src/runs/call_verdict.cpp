#include "runs/call_verdict.h"

#include <array>

namespace op_tools {
namespace {

// By number of the verdict, of the finding.
constexpr std::array kVerdicts{
    NamedText{"AGREES", "agrees"},
    NamedText{"BORN", "born here"},
    NamedText{"CARRIED", "carried"},
    NamedText{"HEALED", "healed"},
    NamedText{"ONLY_A", "only in A"},
    NamedText{"ONLY_B", "only in B"},
    NamedText{"CAUSE_NOT_FOUND", "differs, cause not found"},
    NamedText{"NOT_COMPARED", "not compared"},
};
static_assert(kVerdicts.size() == static_cast<size_t>(CallVerdict::kNotCompared) + 1);

constexpr std::array kFindings{
    NamedText{"NONE", ""},
    NamedText{"ERROR", "one of them raised an error"},
    NamedText{"SHAPE", "other shape"},
    NamedText{"NONFINITE", "NaN or infinity"},
    NamedText{"NUMBERS", "other numbers"},
    NamedText{"RANDOM", "other random numbers"},
    NamedText{"FIRST_INPUT", "an input differs from the start"},
    NamedText{"OTHER_INPUT", "reads the result of another call"},
    NamedText{"CHANGED_INPUT", "an input changed between calls"},
    NamedText{"EXTRA_CALL", "a call that only one run makes"},
    NamedText{"END_RESULT", "another loss, gradient or parameter"},
};
static_assert(kFindings.size() == static_cast<size_t>(Finding::kEndResult) + 1);

}  // namespace

std::string_view to_string(CallVerdict verdict) {
  return kVerdicts[static_cast<size_t>(verdict)].text;
}

std::string_view to_string(Finding finding) {
  return kFindings[static_cast<size_t>(finding)].text;
}

std::vector<NamedText> call_verdicts() {
  return {kVerdicts.begin(), kVerdicts.end()};
}

std::vector<NamedText> findings() {
  return {kFindings.begin(), kFindings.end()};
}

}  // namespace op_tools
