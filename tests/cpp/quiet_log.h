// No messages while it lives: for tests whose subject is not the output.
#pragma once

#include "base/log.h"
#include "scoped_variable.h"

namespace op_tools::test {

struct QuietLog {
  QuietLog() : level("OP_TOOLS_LOG_LEVEL", "off") { log::reload_level(); }
  ~QuietLog() {
    level.set(nullptr);
    log::reload_level();
  }
  ScopedVariable level;
};

}  // namespace op_tools::test
