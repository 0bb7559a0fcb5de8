// Settings of OpObserve (base/options.h has what all tools share).
#pragma once

#include <cstdint>
#include <optional>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

struct ObserveOptions : ToolOptions {
  // 0: the table only; 1: a row per call with its name; 2: arguments and results described; 3: statistics of their
  // values. DIPU_DUMP_OP_ARGS; 3.
  std::optional<int64_t> detail;
  std::optional<bool> lines;         // rows are also log lines; on when DIPU_DUMP_OP_ARGS is set, else off
  std::optional<bool> with_stack;    // note the source line of each call; on
  std::optional<int64_t> max_calls;  // rows written; all
};
struct ResolvedObserveOptions : ResolvedOptions {
  int64_t detail = 3;
  bool lines = false;
  bool with_stack = true;
  std::optional<int64_t> max_calls;
};
OP_TOOLS_API ResolvedObserveOptions resolve(const ObserveOptions& options);

}  // namespace op_tools
