// Errors of calls that the operator did not cause, recognised by their text: OpCall::error, and "error" in meta.json.
#pragma once

#include <string>
#include <string_view>

namespace op_tools {

// Code of the program that runs inside of operators, a hook for saved tensors, raised. torch.utils.checkpoint ends its
// recomputation in this way as soon as it has the tensors it needs.
inline constexpr std::string_view kEndedByProgram = "ended by the program: ";

inline bool is_ended_by_program(std::string_view error) {
  return error.starts_with(kEndedByProgram);
}

inline std::string ended_by_program(std::string_view what) {
  return std::string(kEndedByProgram).append(what);
}

// Autograd refused to write a leaf or a view in place, or vmap refused an operator that draws random numbers. A run of
// the call on copies of its inputs has no leaf and no transform, so it returns.
inline bool is_refused_by_autograd_or_vmap(std::string_view error) {
  return error.find("being used in an in-place operation") != std::string_view::npos ||
         error.find("vmap: ") != std::string_view::npos;
}

}  // namespace op_tools
