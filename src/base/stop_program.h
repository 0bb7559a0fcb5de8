// Thrown by a hook that has to stop the user's program, in two cases: the user asked for it (raise_on_failure),
// or the hook received an error that belongs to the program and must reach it unchanged (a device reports an error of
// its queue to the next caller that waits for it, which may be a hook). The chain passes this on, after all hooks have
// seen the call; every other failure of a hook it contains.
#pragma once

#include <atomic>
#include <exception>
#include <memory>

#include "base/error.h"
#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API StopProgram final : public Error {
 public:
  using Error::Error;
  StopProgram(const std::string& why, std::exception_ptr own) : Error(why), own_(std::move(own)) {}

  // Throws the exception that the program is to see.
  [[noreturn]] void raise() const {
    if (own_) std::rethrow_exception(own_);
    throw StopProgram(*this);
  }

 private:
  std::exception_ptr own_;  // the program's error
};

// Exceptions that are not of the code that they end: Ctrl-C, a handler of a signal that raises, an exception that
// another thread sends. An exception that ends code of ours in the middle belongs to the program: the code that catches
// it holds it, for this thread, and goes on as after any failure; the way back to the program throws it. The first of
// several is held.

// Holds the exception that is being handled, if it is one of these. The host recognises them (host.h).
OP_TOOLS_API bool hold_for_program(const std::exception& caught) noexcept;

// The exception held for this thread, which is forgotten; nullptr: none.
OP_TOOLS_API std::exception_ptr take_held_slow() noexcept;
OP_TOOLS_API extern std::atomic<int> g_held;  // of all threads
inline std::exception_ptr take_held() noexcept {
  return g_held.load(std::memory_order_relaxed) == 0 ? nullptr : take_held_slow();
}

}  // namespace op_tools
