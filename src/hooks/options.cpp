// The only file that reads the environment (log level aside); see options.h.
#include "hooks/options.h"

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "hooks/error.h"
#include "hooks/op_filter.h"

namespace op_tools {
namespace {

constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();

[[noreturn]] void refuse(std::string_view source, std::string_view value, std::string_view allowed) {
  throw Error(std::string(source) + ": '" + std::string(value) + "' is not allowed; " + std::string(allowed));
}

// An empty variable counts as unset, as everywhere in shells.
std::optional<std::string> environment(const std::string& variable) {
  const char* text = std::getenv(variable.c_str());
  if (!text || !*text) return std::nullopt;
  return text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

void check_range(std::string_view source, std::string_view shown, int64_t number, int64_t least, int64_t most) {
  if (number >= least && number <= most) return;
  refuse(
      source, shown,
      "give a whole number " + (most == kMaxNumber ? "of at least " + std::to_string(least)
                                                   : "from " + std::to_string(least) + " to " + std::to_string(most)));
}

int64_t number_from(std::string_view source, std::string_view text, int64_t least, int64_t most) {
  const std::string_view digits = trimmed(text);
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // Neither a number nor a whole one nor one of 64 bits: out of every range.
  const bool whole = failure == std::errc() && end == digits.data() + digits.size();
  check_range(source, text, whole ? number : least - 1, least, most);
  return number;
}

bool bool_from(std::string_view source, std::string_view text) {
  const std::string word = lower(trimmed(text));
  if (word == "1" || word == "true" || word == "on") return true;
  if (word == "0" || word == "false" || word == "off") return false;
  refuse(source, text, "give 0, 1, true, false, on or off");
}

// A text setting and where it came from, for messages.
struct Text {
  std::string value;
  std::string source;
};

Text text_setting(const std::optional<std::string>& argument, std::string_view argument_name,
                  const std::string& variable, std::string_view otherwise) {
  if (argument) return {*argument, std::string(argument_name)};
  if (auto value = environment(variable)) return {std::move(*value), variable};
  return {std::string(otherwise), variable};
}

std::optional<int64_t> number_setting(std::optional<int64_t> argument, std::string_view argument_name,
                                      const std::string& variable, int64_t least, int64_t most) {
  if (argument) {
    check_range(argument_name, std::to_string(*argument), *argument, least, most);
    return argument;
  }
  if (const auto value = environment(variable)) return number_from(variable, *value, least, most);
  return std::nullopt;
}

bool bool_setting(std::optional<bool> argument, const std::string& variable) {
  if (argument) return *argument;
  const auto value = environment(variable);
  return value && bool_from(variable, *value);
}

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
  const Text only = text_setting(options.ops, "ops=", name + "_LIST", "");
  const Text skip = text_setting(options.skip, "skip=", name + "_DISABLE_LIST", "");
  const Text output = text_setting(options.output_dir, "output_dir=", "OP_TOOLS_OUTPUT_DIR", ".");
  if (output.value.empty() || output.value.find('\0') != std::string::npos) {
    refuse(output.source, output.value, "give the path of a folder");
  }
  compat_ditorch();  // so that a wrong value is said here and not in the middle of a run

  ResolvedOptions resolved;
  resolved.filter = std::make_shared<OpFilter>(only.value, skip.value, only.source, skip.source);
  resolved.level = options.level.value_or(Level::kAten);
  resolved.output_dir = output.value;
  if (options.steps) resolved.steps = checked_steps(*options.steps);
  resolved.skip_cpu = bool_setting(options.skip_cpu, "OP_TOOLS_SKIP_CPU");
  resolved.all_threads = options.all_threads.value_or(false);
  return resolved;
}

ResolvedCaptureOptions resolve(const CaptureOptions& options) {
  ResolvedCaptureOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_CAPTURE");
  const Text format = text_setting(options.format, "format=", "OP_CAPTURE_FORMAT", "folders");
  if (format.value == "container") {
    resolved.format = CaptureFormat::kContainer;
  } else if (format.value != "folders") {
    refuse(format.source, format.value, "give folders or container");
  }
  resolved.max_calls = number_setting(options.max_calls, "max_calls=", "OP_CAPTURE_MAX_CALLS", 1, kMaxNumber);
  resolved.max_per_signature =
      number_setting(options.max_per_signature, "max_per_signature=", "OP_CAPTURE_MAX_PER_SIGNATURE", 1, kMaxNumber);
  const auto pending_mb =
      number_setting(options.max_pending_mb, "max_pending_mb=", "OP_TOOLS_MAX_PENDING_MB", 1, kMaxNumber >> 20);
  if (pending_mb) resolved.max_pending_bytes = *pending_mb << 20;
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

std::vector<std::pair<std::string, std::string>> environment_containing(std::string_view part) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || text.substr(0, equals).find(part) == std::string_view::npos) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace op_tools
