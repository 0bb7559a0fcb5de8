#include "capture/capture_options.h"

#include "base/read_options.h"

namespace op_tools {

ResolvedCaptureOptions resolve(const CaptureOptions& options) {
  ResolvedCaptureOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_CAPTURE");
  const TextSetting format = text_setting(options.format, "format=", "OP_CAPTURE_FORMAT", "folders");
  if (format.value == "container") {
    resolved.format = CaptureFormat::kContainer;
  } else if (format.value != "folders") {
    refuse(format.source, format.value, "give folders or container");
  }
  resolved.dedupe = bool_setting(options.dedupe, "OP_CAPTURE_DEDUPE");
  resolved.max_calls = number_setting(options.max_calls, "max_calls=", "OP_CAPTURE_MAX_CALLS", 1, kMaxNumber);
  resolved.max_per_signature =
      number_setting(options.max_per_signature, "max_per_signature=", "OP_CAPTURE_MAX_PER_SIGNATURE", 1, kMaxNumber);
  const auto pending_mb =
      number_setting(options.max_pending_mb, "max_pending_mb=", "OP_TOOLS_MAX_PENDING_MB", 1, kMaxNumber >> 20);
  if (pending_mb) resolved.max_pending_bytes = *pending_mb << 20;
  return resolved;
}

}  // namespace op_tools
