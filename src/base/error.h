// The only exception type that op_tools itself throws: wrong options, environment values, files.
// what() names the fault, the place and the remedy. Failures of a user's op are never wrapped in it.
#pragma once

#include <stdexcept>
#include <string>

#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace op_tools
