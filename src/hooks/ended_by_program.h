// Errors of calls that are none of the operator's. A call that the program itself ended: code of its own that runs
// inside of operators, a hook for saved tensors, threw. torch.utils.checkpoint ends a recomputation so as soon as it
// has what it needs. The operator is not to blame. Such a call has an error like one whose operator raised, in OpCall
// and in meta.json, which begins with these words.
#pragma once

#include <string>
#include <string_view>

namespace op_tools {

inline constexpr std::string_view kEndedByProgram = "ended by the program: ";

inline bool is_ended_by_program(std::string_view error) {
  return error.starts_with(kEndedByProgram);
}

inline std::string ended_by_program(std::string_view what) {
  return std::string(kEndedByProgram).append(what);
}

// What stood around the operator refused the call: autograd, of a leaf or a view that is written in place, or vmap, of
// one that draws. A copy of the inputs is no leaf, and in no transform. Known by torch's words.
inline bool is_refused_around(std::string_view error) {
  return error.find("being used in an in-place operation") != std::string_view::npos ||
         error.find("vmap: ") != std::string_view::npos;
}

}  // namespace op_tools
