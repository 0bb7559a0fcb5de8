#include "compare/compare_options.h"

#include <utility>

#include "base/error.h"
#include "base/read_options.h"

namespace op_tools {

namespace {
constexpr std::pair<std::string_view, CompareMethod> kMethods[] = {
    {"relative", CompareMethod::kRelative},
    {"allclose", CompareMethod::kAllclose},
    {"bitwise", CompareMethod::kBitwise},
    {"ulp", CompareMethod::kUlp},
    {"msprobe-quick", CompareMethod::kMsprobeQuick},
    {"msprobe-absolute", CompareMethod::kMsprobeAbsolute},
};
}  // namespace

std::string_view to_string(CompareMethod method) {
  return kMethods[static_cast<size_t>(method)].first;
}

CompareMethod method_from_string(std::string_view source, std::string_view text) {
  std::string names;
  for (const auto& [name, method] : kMethods) {
    if (name == text) return method;
    names.append(names.empty() ? "" : ", ").append(name);
  }
  refuse(source, text, "give one of " + names);
}

ResolvedCompareOptions resolve(const CompareOptions& options) {
  ResolvedCompareOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_AUTOCOMPARE");
  const TextSetting method = text_setting(options.method, "method=", "OP_AUTOCOMPARE_METHOD", "relative");
  resolved.method = method_from_string(method.source, method.value);
  resolved.golden = options.golden.value_or(true);
  resolved.nan_equal = options.nan_equal.value_or(true);
  resolved.strides = options.strides.value_or(true);
  resolved.gradients = options.gradients.value_or(true);
  resolved.async = options.async.value_or(false);
  resolved.raise_on_failure = options.raise_on_failure.value_or(false);
  if (resolved.async && resolved.raise_on_failure) {
    throw Error("async_=True: the failure is known after the program has gone on; leave it out with raise_on_failure");
  }
  const auto limit = [](const std::optional<int64_t>& given, const char* name, int64_t least, int64_t most,
                        int64_t otherwise) {
    if (given) check_range(name, std::to_string(*given), *given, least, most);
    return given.value_or(otherwise);
  };
  if (options.first_n_per_signature) {
    resolved.first_n_per_signature = limit(options.first_n_per_signature, "first_n_per_signature=", 1, kMaxNumber, 1);
  }
  resolved.every_nth = limit(options.every_nth, "every_nth=", 1, kMaxNumber, 1);
  resolved.workers = limit(options.workers, "workers=", 1, 64, 2);
  resolved.max_saved = limit(options.max_saved, "max_saved=", 0, kMaxNumber, 2);
  resolved.max_saved_bytes = limit(options.max_saved_mb, "max_saved_mb=", 0, kMaxNumber >> 20, 4096) << 20;
  const auto pending_mb =
      number_setting(options.max_pending_mb, "max_pending_mb=", "OP_TOOLS_MAX_PENDING_MB", 1, kMaxNumber >> 20);
  if (pending_mb) resolved.max_pending_bytes = *pending_mb << 20;
  return resolved;
}

}  // namespace op_tools
