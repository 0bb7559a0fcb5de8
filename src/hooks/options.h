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

struct OverflowOptions : ToolOptions {
  std::optional<bool> immediate;     // raise in the program at the first producer; off
  std::optional<bool> inf;           // infinities count as well; on
  std::optional<int64_t> every;      // on a device: calls that are judged together; 64
  std::optional<std::string> allow;  // operators whose -inf is intended, as a filter list; masks by default
  std::optional<bool> allow_in_backward_with_scaler;  // what backward makes is expected, a loss scaler sees to it; off
};
struct ResolvedOverflowOptions : ResolvedOptions {
  bool immediate = false;
  bool inf = true;
  int64_t every = 64;
  std::string allow;
  bool allow_in_backward_with_scaler = false;
};
OP_TOOLS_API ResolvedOverflowOptions resolve(const OverflowOptions& options);

enum class TimeMode : uint8_t { kSync, kEvent, kHost };
OP_TOOLS_API std::string_view to_string(TimeMode mode);

struct TimeOptions : ToolOptions {
  std::optional<std::string> mode;    // "sync" | "event" | "host"; OP_TIME_MEASURE_MODE
  std::optional<int64_t> max_calls;   // single calls kept in memory, for the trace; OP_TIME_MEASURE_MAX_CALLS, 200000
  std::optional<bool> with_stack;     // note the source line of each call
  std::optional<bool> with_modules;   // note the module path of each call (set by the Python package)
  std::optional<bool> memory;         // note what each call allocates, and what is alive at the end
  std::optional<bool> mark_ranges;    // each call as a range in a running torch.profiler
  std::optional<bool> lines;          // a line for each call (default)
  std::optional<bool> files;          // calls.csv, summary.csv, trace.json (default)
  std::optional<int64_t> first_step;  // the number of the first step
};
struct ResolvedTimeOptions : ResolvedOptions {
  TimeMode mode = TimeMode::kSync;
  int64_t max_calls = 200'000;
  bool with_stack = false;
  bool with_modules = false;
  bool memory = false;
  bool mark_ranges = false;
  bool lines = true;
  bool files = true;
  int64_t first_step = 0;
};
OP_TOOLS_API ResolvedTimeOptions resolve(const TimeOptions& options);

// Dtypes to compute in instead of others, "torch.float16->torch.float32,torch.bfloat16->torch.float32": for the tools
// that run operators elsewhere (fallback, dtype cast) or again (compare). Read by CastRules (fallback/cast_rules.h).
struct CastSettings {
  std::string dict;                                        // for all operators
  std::string source;                                      // the argument or variable it came from, for messages
  std::vector<std::pair<std::string, std::string>> by_op;  // <OP>_OP_DTYPE_CAST_DICT and its value: instead, for one
};
// `argument`: wins over OP_DTYPE_CAST_DICT, which wins over `otherwise`. An argument also silences the variables for
// single operators.
OP_TOOLS_API CastSettings cast_settings(const std::optional<std::string>& argument, std::string_view otherwise);

struct FallbackOptions : ToolOptions {  // at the aten level, DIPU_FORCE_FALLBACK_OPS_LIST stands in for `ops`
  std::optional<bool> on_missing;       // only what the device does not implement; OP_FALLBACK_ON_MISSING
  std::optional<std::string> cast;      // OP_DTYPE_CAST_DICT; no cast without it
};
struct ResolvedFallbackOptions : ResolvedOptions {
  bool on_missing = false;
  CastSettings cast;
};
OP_TOOLS_API ResolvedFallbackOptions resolve(const FallbackOptions& options);

struct DtypeCastOptions : ToolOptions {
  std::optional<std::string> cast;  // OP_DTYPE_CAST_DICT; float16 and bfloat16 to float32 without it
};
struct ResolvedDtypeCastOptions : ResolvedOptions {
  CastSettings cast;
};
OP_TOOLS_API ResolvedDtypeCastOptions resolve(const DtypeCastOptions& options);

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
