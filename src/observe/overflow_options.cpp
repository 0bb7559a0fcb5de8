#include "observe/overflow_options.h"

#include <string_view>

#include "base/read_options.h"

namespace op_tools {

ResolvedOverflowOptions resolve(const OverflowOptions& options) {
  // What attention masks and the like are made with, at both levels; what is logarithms of zero by design.
  constexpr std::string_view kMasks =
      R"((torch\.)?(Tensor\.)?(masked_fill_?|where|full|full_like|new_full|fill_?|scalar_tensor|tensor|as_tensor|__setitem__|index_put_?|lift_fresh(_copy)?|_ctc_loss))";
  ResolvedOverflowOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_OVERFLOW_CHECK");
  resolved.immediate = options.immediate.value_or(false);
  resolved.inf = options.inf.value_or(true);
  if (options.every) check_range("every=", std::to_string(*options.every), *options.every, 1, kMaxNumber);
  resolved.every = options.every.value_or(64);
  resolved.allow = options.allow.value_or(std::string(kMasks));
  resolved.allow_in_backward_with_scaler = options.allow_in_backward_with_scaler.value_or(false);
  if (options.max_saved)
    check_range("max_saved=", std::to_string(*options.max_saved), *options.max_saved, 0, kMaxNumber);
  resolved.max_saved = options.max_saved.value_or(resolved.max_saved);
  if (options.max_saved_mb) {
    check_range("max_saved_mb=", std::to_string(*options.max_saved_mb), *options.max_saved_mb, 0, kMaxNumber >> 20);
    resolved.max_saved_bytes = *options.max_saved_mb << 20;
  }
  return resolved;
}

}  // namespace op_tools
