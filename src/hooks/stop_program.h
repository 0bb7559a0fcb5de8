// The two ways in which a hook may end the user's program: it was told to (raise_on_failure), or it met an error of the
// program's own, which then has to reach the program as it is (a device reports what went wrong in its queue to whoever
// waits for it next, and that may be a hook). The chain lets this through where it keeps every other failure of a hook
// to itself, after all hooks have seen the call.
#pragma once

#include <exception>

#include "base/error.h"

namespace op_tools {

class OP_TOOLS_API StopProgram final : public Error {
 public:
  using Error::Error;
  StopProgram(const std::string& why, std::exception_ptr own) : Error(why), own_(std::move(own)) {}

  // What the program is to see.
  [[noreturn]] void raise() const {
    if (own_) std::rethrow_exception(own_);
    throw StopProgram(*this);
  }

 private:
  std::exception_ptr own_;  // the program's error
};

}  // namespace op_tools
