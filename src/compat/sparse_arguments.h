#pragma once

// Checks the parts of a sparse tensor by torch's own operator, without the question whether their memory is pinned.
// Gap: the last argument, check_pinning, since torch 2.8. Any thread.

#include <optional>

namespace op_tools::compat {

template <typename Operator, typename... Arguments>
void validate_unpinned(const Arguments&... arguments) {
  if constexpr (requires { Operator::call(arguments..., std::optional<bool>(false)); }) {
    Operator::call(arguments..., false);
  } else {
    Operator::call(arguments...);
  }
}

}  // namespace op_tools::compat
