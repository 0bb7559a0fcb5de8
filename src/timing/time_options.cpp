#include "timing/time_options.h"

#include "base/read_options.h"

namespace op_tools {

std::string_view to_string(TimeMode mode) {
  switch (mode) {
    case TimeMode::kSync:
      return "sync";
    case TimeMode::kEvent:
      return "event";
    case TimeMode::kHost:
      break;
  }
  return "host";
}

ResolvedTimeOptions resolve(const TimeOptions& options) {
  ResolvedTimeOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_TIME_MEASURE");
  const TextSetting mode = text_setting(options.mode, "mode=", "OP_TIME_MEASURE_MODE", "sync");
  if (mode.value == "event") {
    resolved.mode = TimeMode::kEvent;
  } else if (mode.value == "host") {
    resolved.mode = TimeMode::kHost;
  } else if (mode.value != "sync") {
    refuse(mode.source, mode.value, "give sync, event or host");
  }
  const auto calls = number_setting(options.max_calls, "max_calls=", "OP_TIME_MEASURE_MAX_CALLS", 0, kMaxNumber);
  if (calls) resolved.max_calls = *calls;
  resolved.with_stack = options.with_stack.value_or(resolved.with_stack);
  resolved.with_modules = options.with_modules.value_or(resolved.with_modules);
  resolved.memory = options.memory.value_or(resolved.memory);
  resolved.mark_ranges = options.mark_ranges.value_or(resolved.mark_ranges);
  resolved.lines = options.lines.value_or(resolved.lines);
  resolved.files = options.files.value_or(resolved.files);
  if (options.first_step) {
    check_range("first_step=", std::to_string(*options.first_step), *options.first_step, 0, kMaxNumber);
    resolved.first_step = *options.first_step;
  }
  return resolved;
}

}  // namespace op_tools
