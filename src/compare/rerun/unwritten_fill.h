// What memory that an operator allocates and does not write holds in a run of a graph again: a number, so that two runs
// show which results depend on such memory. Asked by the Python code that runs the graph's operators.
#pragma once

#include <optional>

#include "base/export.h"

namespace op_tools {

enum class UnwrittenFill { kZero, kNan };  // in integers 1 in the place of NaN

// Of this thread, as long as it lives.
class OP_TOOLS_API UnwrittenFillGuard {
 public:
  explicit UnwrittenFillGuard(std::optional<UnwrittenFill> fill);
  ~UnwrittenFillGuard();
  UnwrittenFillGuard(const UnwrittenFillGuard&) = delete;
  UnwrittenFillGuard& operator=(const UnwrittenFillGuard&) = delete;

 private:
  std::optional<UnwrittenFill> before_;
};

// nullopt: it stays as it is.
OP_TOOLS_API std::optional<UnwrittenFill> unwritten_fill();

}  // namespace op_tools
