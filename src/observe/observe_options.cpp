#include "observe/observe_options.h"

#include <string>

#include "base/read_options.h"

namespace op_tools {

ResolvedObserveOptions resolve(const ObserveOptions& options) {
  const std::string variable = "DIPU_DUMP_OP_ARGS";
  ResolvedObserveOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_OBSERVE");
  resolved.detail = number_setting(options.detail, "detail=", variable, 0, 3).value_or(resolved.detail);
  // Who sets the variable expects lines while the program runs.
  resolved.lines = options.lines.value_or(environment(variable).has_value());
  resolved.with_stack = options.with_stack.value_or(resolved.with_stack);
  if (options.max_calls)
    check_range("max_calls=", std::to_string(*options.max_calls), *options.max_calls, 1, kMaxNumber);
  resolved.max_calls = options.max_calls;
  return resolved;
}

}  // namespace op_tools
