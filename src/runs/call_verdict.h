// The verdicts on two calls that were compared. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/export.h"

namespace op_tools {

enum class CallVerdict : uint8_t {
  kAgrees,
  kBorn,     // its inputs agree, its results do not
  kCarried,  // its inputs differ already
  kHealed,   // its inputs differ, its results agree
  kOnlyA,    // the other run has no such call
  kOnlyB,
  kCauseNotFound,  // a loss, gradient or parameter of it differs, and no call in which that was born was found
  kNotCompared,    // a result of it has no statistics in a run
};
OP_TOOLS_API std::string_view to_string(CallVerdict verdict);  // "born here"

// In what way the results differ: of kOnlyA, kOnlyB the results of other calls made of them, or those of a copy and its
// source.
enum class Finding : uint8_t {
  kNone,
  kError,  // either call raised
  kShape,
  kNonfinite,  // NaN or infinities on a single side
  kNumbers,
  kRandom,        // numbers of a call that draws random ones
  kFirstInput,    // a parameter, gradient or input of the program differs from the start
  kOtherInput,    // it reads the result of another call than its partner does
  kChangedInput,  // it reads memory again, which was equal, and which no call is seen to have written otherwise
  kExtraCall,     // a call of a single run changes the inputs of later calls
  kEndResult,     // a loss, a parameter's gradient or a parameter differs
};
OP_TOOLS_API std::string_view to_string(Finding finding);

// The members of both for Python, whose rows have the strings; in the order of the enumerations.
struct NamedText {
  std::string_view token, text;  // "BORN", "born here"
};
OP_TOOLS_API std::vector<NamedText> call_verdicts();
OP_TOOLS_API std::vector<NamedText> findings();

}  // namespace op_tools
