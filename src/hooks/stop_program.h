// The one way in which a hook may end the user's program: it was told to (raise_on_failure). The chain lets this
// through where it keeps every other failure of a hook to itself, after all hooks have seen the call.
#pragma once

#include "hooks/error.h"

namespace op_tools {

class OP_TOOLS_API StopProgram final : public Error {
 public:
  using Error::Error;
};

}  // namespace op_tools
