// Settings of OpOverflowCheck (base/options.h has what all tools share).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

struct OverflowOptions : ToolOptions {
  std::optional<bool> immediate;     // raise in the program at the first producer; off
  std::optional<bool> inf;           // infinities count as well; on
  std::optional<int64_t> every;      // on a device: calls that are judged together; 64
  std::optional<std::string> allow;  // operators whose -inf is intended, as a filter list; masks by default
  std::optional<bool> allow_in_backward_with_scaler;  // what backward makes is expected, a loss scaler sees to it; off
  std::optional<int64_t> max_saved;                   // producers saved per operator, forward and backward each; 2
  std::optional<int64_t> max_saved_mb;                // of all saved calls together; 1024
};
struct ResolvedOverflowOptions : ResolvedOptions {
  bool immediate = false;
  bool inf = true;
  int64_t every = 64;
  std::string allow;
  bool allow_in_backward_with_scaler = false;
  int64_t max_saved = 2;
  int64_t max_saved_bytes = int64_t{1024} << 20;
};
OP_TOOLS_API ResolvedOverflowOptions resolve(const OverflowOptions& options);

}  // namespace op_tools
