#include "runs/call_verdict.h"

namespace op_tools {

std::string_view to_string(CallVerdict verdict) {
  switch (verdict) {
    case CallVerdict::kAgrees:
      return "agrees";
    case CallVerdict::kBorn:
      return "born here";
    case CallVerdict::kCarried:
      return "carried";
    case CallVerdict::kHealed:
      return "healed";
    case CallVerdict::kOnlyA:
      return "only in A";
    case CallVerdict::kOnlyB:
      return "only in B";
    case CallVerdict::kCauseNotFound:
      return "differs, cause not found";
    case CallVerdict::kNotCompared:
      return "not compared";
  }
  return "";
}

std::string_view to_string(Finding finding) {
  switch (finding) {
    case Finding::kNone:
      return "";
    case Finding::kError:
      return "one of them raised an error";
    case Finding::kShape:
      return "other shape";
    case Finding::kNonfinite:
      return "NaN or infinity";
    case Finding::kNumbers:
      return "other numbers";
    case Finding::kRandom:
      return "other random numbers";
    case Finding::kFirstInput:
      return "an input differs from the start";
    case Finding::kOtherInput:
      return "reads the result of another call";
    case Finding::kExtraCall:
      return "a call that only one run makes";
    case Finding::kEndResult:
      return "another loss, gradient or parameter";
  }
  return "";
}

}  // namespace op_tools
