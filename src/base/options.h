// Settings that all tools share; each tool has its own beside its hook (capture/capture_options.h, ...).
// A field that is set wins over the environment; resolve() is called once, when a scope is entered, and an
// invalid value is an Error that names the variable (or argument) and the value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"

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
  std::optional<std::string> modules;         // only calls made in these modules; unset: <PREFIX>_MODULES
  std::optional<std::vector<int64_t>> steps;  // record only in these steps (step() counts from 0); unset: all
  std::optional<bool> skip_cpu;               // pass over calls whose tensors are all on the CPU; OP_TOOLS_SKIP_CPU=1
  std::optional<bool> all_threads;            // aten level: also threads started later; see docs
};

// The same with every question answered.
struct ResolvedOptions {
  std::shared_ptr<const OpFilter> filter;
  std::shared_ptr<const OpFilter> modules;  // nullptr: in all modules, and outside of them
  Level level = Level::kAten;
  std::string output_dir;
  std::optional<std::vector<int64_t>> steps;
  bool skip_cpu = false;
  bool all_threads = false;
};
// `prefix`: "OP_CAPTURE", "OP_AUTOCOMPARE", ...
OP_TOOLS_API ResolvedOptions resolve(const ToolOptions& options, std::string_view prefix);

// RANK of a distributed launch, 0 without one. set_rank() is for launchers that know it otherwise
// (the default process group); it wins over the environment.
OP_TOOLS_API int64_t distributed_rank();
OP_TOOLS_API void set_rank(int64_t rank);

// OP_TOOLS_COMPAT=ditorch: print messages in the form that ditorch uses.
OP_TOOLS_API bool compat_ditorch();

}  // namespace op_tools
