#include "base/options.h"

#include <algorithm>
#include <atomic>

#include "base/op_filter.h"
#include "base/read_options.h"

namespace op_tools {
namespace {

std::vector<int64_t> checked_steps(std::vector<int64_t> steps) {
  if (steps.empty()) refuse("steps=", "", "name at least one step, or leave it out for all steps");
  for (const int64_t step : steps) check_range("steps=", std::to_string(step), step, 0, kMaxNumber);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::atomic<int64_t> known_rank = -1;  // -1: set_rank() was not called

}  // namespace

std::string_view to_string(Level level) {
  return level == Level::kAten ? "aten" : "torch";
}

Level level_from_string(std::string_view text) {
  if (text == "aten") return Level::kAten;
  if (text == "torch") return Level::kTorch;
  refuse("level=", text, "give aten or torch");
}

ResolvedOptions resolve(const ToolOptions& options, std::string_view prefix) {
  const std::string name(prefix);
  const TextSetting only = text_setting(options.ops, "ops=", name + "_LIST", "");
  const TextSetting skip = text_setting(options.skip, "skip=", name + "_DISABLE_LIST", "");
  const TextSetting output = text_setting(options.output_dir, "output_dir=", "OP_TOOLS_OUTPUT_DIR", ".");
  if (output.value.empty() || output.value.find('\0') != std::string::npos) {
    refuse(output.source, output.value, "give the path of a folder");
  }
  const TextSetting modules = text_setting(options.modules, "modules=", name + "_MODULES", "");
  compat_ditorch();  // so that a wrong value is said here and not in the middle of a run

  ResolvedOptions resolved;
  resolved.filter = std::make_shared<OpFilter>(only.value, skip.value, only.source, skip.source);
  auto in_modules = std::make_shared<OpFilter>(modules.value, "", modules.source, "");
  if (in_modules->has_only()) resolved.modules = std::move(in_modules);
  resolved.level = options.level.value_or(Level::kAten);
  resolved.output_dir = output.value;
  if (options.steps) resolved.steps = checked_steps(*options.steps);
  resolved.skip_cpu = bool_setting(options.skip_cpu, "OP_TOOLS_SKIP_CPU");
  resolved.all_threads = options.all_threads.value_or(false);
  return resolved;
}

int64_t distributed_rank() {
  const int64_t rank = known_rank.load(std::memory_order_relaxed);
  if (rank >= 0) return rank;
  const auto value = environment("RANK");
  return value ? number_from("RANK", *value, 0, kMaxNumber) : 0;
}

void set_rank(int64_t rank) {
  check_range("set_rank()", std::to_string(rank), rank, 0, kMaxNumber);
  known_rank = rank;
}

bool compat_ditorch() {
  const auto value = environment("OP_TOOLS_COMPAT");
  if (!value) return false;
  if (*value != "ditorch") refuse("OP_TOOLS_COMPAT", *value, "give ditorch, or leave it unset");
  return true;
}

}  // namespace op_tools
