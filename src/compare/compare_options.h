// Settings of OpAutoCompare (base/options.h has what all tools share).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

// How a result is judged: docs/autocompare.md.
enum class CompareMethod : uint8_t { kRelative, kAllclose, kBitwise, kUlp, kMsprobeQuick, kMsprobeAbsolute };
OP_TOOLS_API std::string_view to_string(CompareMethod method);  // "relative", "msprobe-quick", ...

struct CompareOptions : ToolOptions {
  std::optional<std::string> method;             // OP_AUTOCOMPARE_METHOD; relative
  std::optional<bool> golden;                    // run in float64 too where that decides; on
  std::optional<bool> nan_equal;                 // NaN agrees with NaN; on
  std::optional<bool> strides;                   // other strides than the CPU's are a failure; on
  std::optional<bool> gradients;                 // torch level: judge input gradients; on
  std::optional<int64_t> first_n_per_signature;  // only the first N calls per op, shapes and dtypes
  std::optional<int64_t> every_nth;              // of those that remain every Nth, beginning with the first
  std::optional<bool> async;                     // judge on other threads while the device goes on; off
  std::optional<int64_t> workers;                // threads of async; 2
  std::optional<int64_t> max_pending_mb;         // memory that may wait to be judged; OP_TOOLS_MAX_PENDING_MB, 1024
  std::optional<bool> raise_on_failure;          // raise in the program at the first failure; off
  std::optional<int64_t> max_saved;              // failures saved per op, shapes and dtypes; 2
  std::optional<int64_t> max_saved_mb;           // of all saved failures together; 4096
};
struct ResolvedCompareOptions : ResolvedOptions {
  CompareMethod method = CompareMethod::kRelative;
  bool golden = true, nan_equal = true, strides = true, gradients = true;
  std::optional<int64_t> first_n_per_signature;
  int64_t every_nth = 1;
  bool async = false;
  int64_t workers = 2;
  int64_t max_pending_bytes = int64_t{1024} << 20;
  bool raise_on_failure = false;
  int64_t max_saved = 2;
  int64_t max_saved_bytes = int64_t{4096} << 20;
};
OP_TOOLS_API ResolvedCompareOptions resolve(const CompareOptions& options);
// "relative", "allclose", ..., else Error that names `source`.
OP_TOOLS_API CompareMethod method_from_string(std::string_view source, std::string_view text);

}  // namespace op_tools
