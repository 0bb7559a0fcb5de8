// Settings of the tools, and the only place that reads environment variables (log level aside).
// A field that is set wins over the environment; resolve() is called once, when a scope is entered, and an
// invalid value is an Error that names the variable (or argument) and the value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/export.h"

namespace op_tools {

class OpFilter;

enum class Level : uint8_t { kAten, kTorch };
OP_TOOLS_API std::string_view to_string(Level level);
OP_TOOLS_API Level level_from_string(std::string_view text);  // "aten" | "torch", else Error

// What a user may set for any tool.
struct ToolOptions {
  std::optional<std::string> ops;             // only these; unset: <PREFIX>_LIST
  std::optional<std::string> skip;            // all but these; unset: <PREFIX>_DISABLE_LIST
  std::optional<Level> level;                 // unset: aten (the Python package sets torch)
  std::optional<std::string> output_dir;      // parent of op_*_result; unset: OP_TOOLS_OUTPUT_DIR, else "."
  std::optional<std::vector<int64_t>> steps;  // record only in these steps (step() counts from 0); unset: all
  std::optional<bool> skip_cpu;               // pass over calls whose tensors are all on the CPU; OP_TOOLS_SKIP_CPU=1
  std::optional<bool> all_threads;            // aten level: also threads started later; see docs
};

// The same with every question answered.
struct ResolvedOptions {
  std::shared_ptr<const OpFilter> filter;
  Level level = Level::kAten;
  std::string output_dir;
  std::optional<std::vector<int64_t>> steps;
  bool skip_cpu = false;
  bool all_threads = false;
};
// `prefix`: "OP_CAPTURE", "OP_AUTOCOMPARE", ...
OP_TOOLS_API ResolvedOptions resolve(const ToolOptions& options, std::string_view prefix);

enum class CaptureFormat : uint8_t { kFolders, kContainer };

struct CaptureOptions : ToolOptions {
  std::optional<std::string> format;         // "folders" | "container"; OP_CAPTURE_FORMAT
  std::optional<int64_t> max_calls;          // stop recording after so many calls; OP_CAPTURE_MAX_CALLS
  std::optional<int64_t> max_per_signature;  // first N calls per op, shapes and dtypes; OP_CAPTURE_MAX_PER_SIGNATURE
  std::optional<int64_t> max_pending_mb;     // memory that may wait to be written; OP_TOOLS_MAX_PENDING_MB, 1024
};
struct ResolvedCaptureOptions : ResolvedOptions {
  CaptureFormat format = CaptureFormat::kFolders;
  std::optional<int64_t> max_calls;
  std::optional<int64_t> max_per_signature;
  int64_t max_pending_bytes = int64_t{1024} << 20;
};
OP_TOOLS_API ResolvedCaptureOptions resolve(const CaptureOptions& options);

// RANK of a distributed launch, 0 without one. set_rank() is for launchers that know it otherwise
// (the default process group); it wins over the environment.
OP_TOOLS_API int64_t distributed_rank();
OP_TOOLS_API void set_rank(int64_t rank);

// OP_TOOLS_COMPAT=ditorch: print and spell as the peer does.
OP_TOOLS_API bool compat_ditorch();

// Names and values of the environment variables whose names contain `part`, sorted: for settings that take an
// operator's name in front (LINEAR_AUTOCOMPARE_ERROR_TOLERANCE).
OP_TOOLS_API std::vector<std::pair<std::string, std::string>> environment_containing(std::string_view part);

}  // namespace op_tools
