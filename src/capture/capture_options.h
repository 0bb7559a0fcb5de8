// Settings of OpCapture (base/options.h has what all tools share).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/export.h"
#include "base/options.h"
#include "calls/capture_format.h"

namespace op_tools {

struct CaptureOptions : ToolOptions {
  std::optional<std::string> format;         // "folders" | "container"; OP_CAPTURE_FORMAT
  std::optional<bool> dedupe;                // bytes of tensors stored once, by content; OP_CAPTURE_DEDUPE
  std::optional<int64_t> max_calls;          // stop recording after so many calls; OP_CAPTURE_MAX_CALLS
  std::optional<int64_t> max_per_signature;  // first N calls per op, shapes and dtypes; OP_CAPTURE_MAX_PER_SIGNATURE
  std::optional<int64_t> max_pending_mb;     // memory that may wait to be written; OP_TOOLS_MAX_PENDING_MB, 1024
};
struct ResolvedCaptureOptions : ResolvedOptions {
  CaptureFormat format = CaptureFormat::kFolders;
  bool dedupe = false;
  std::optional<int64_t> max_calls;
  std::optional<int64_t> max_per_signature;
  int64_t max_pending_bytes = int64_t{1024} << 20;
};
OP_TOOLS_API ResolvedCaptureOptions resolve(const CaptureOptions& options);

}  // namespace op_tools
