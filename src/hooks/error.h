// The only exception type that op_tools itself throws: wrong options, environment values, files.
// what() names what was wrong, where, and what to do. Failures of a user's op are never wrapped in it.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "hooks/export.h"

namespace op_tools {

class OP_TOOLS_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What any exception says; torch's without the C++ stack that its what() ends with. Never empty.
OP_TOOLS_API std::string message_of(const std::exception& error);

}  // namespace op_tools
