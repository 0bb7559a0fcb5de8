// Thrown by a hook that has to stop the user's program, in one of two cases: the user asked for it (raise_on_failure),
// or the hook received an error that belongs to the program and must reach it unchanged (a device reports an error of
// its queue to the next caller that waits for it, which may be a hook). The chain passes this on, after all hooks have
// seen the call; every other failure of a hook it contains.
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
