// Calls that op_tools makes give no warnings: the program has had those of its own call, and others are none of its
// business.
#pragma once

#include <c10/util/Exception.h>

#include <memory>

#include "base/export.h"

namespace op_tools {

// For operators that are called in C++, on this thread, while an object lives.
class QuietOperators {
 public:
  QuietOperators() : guard_(&silent()) {}

 private:
  OP_TOOLS_API static c10::WarningHandler& silent();
  const c10::WarningUtils::WarningHandlerGuard guard_;
};

// For a run of a call of the program's. What torch warns of once in a process is still there for the program, and with
// `in_python` the host's warnings of this thread are not given, nor noted as given.
class OP_TOOLS_API QuietRun {
 public:
  explicit QuietRun(bool in_python);
  ~QuietRun();
  QuietRun(const QuietRun&) = delete;
  QuietRun& operator=(const QuietRun&) = delete;

 private:
  const QuietOperators operators_;
  const std::shared_ptr<void> python_;
};

}  // namespace op_tools
