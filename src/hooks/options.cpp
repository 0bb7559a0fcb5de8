// The only file that reads the environment (log level aside); see options.h.
#include "hooks/options.h"

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <regex>

#include "hooks/compare_options.h"
#include "hooks/error.h"
#include "hooks/log.h"
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

// DIPU's list names what its dispatch table holds, where add() arrives as add.out: an item "add.out" means every form
// of add, "add.Scalar_out" every form of add.Scalar. Other items are expressions as everywhere.
std::string from_dipu_list(std::string_view list) {
  std::string filter;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string item(trimmed(list.substr(0, comma)));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    if (item.empty()) continue;
    static const std::regex out_form(R"((\w+)\.(?:(\w+)_)?out)");
    std::smatch parts;
    if (!filter.empty()) filter += ", ";
    if (std::regex_match(item, parts, out_form)) {
      const std::string overload = parts[2].matched ? "\\." + parts[2].str() : "";
      filter += item + "|" + parts[1].str() + "_?" + overload;
    } else {
      filter += item;
    }
  }
  return filter;
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
  const Text method = text_setting(options.method, "method=", "OP_AUTOCOMPARE_METHOD", "relative");
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

ResolvedOverflowOptions resolve(const OverflowOptions& options) {
  // What attention masks and the like are made with, at both levels.
  constexpr std::string_view kMasks =
      R"((torch\.)?(Tensor\.)?(masked_fill_?|where|full|full_like|new_full|fill_?|scalar_tensor|tensor|as_tensor|__setitem__|index_put_?|lift_fresh(_copy)?))";
  ResolvedOverflowOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_OVERFLOW_CHECK");
  resolved.immediate = options.immediate.value_or(false);
  resolved.inf = options.inf.value_or(true);
  if (options.every) check_range("every=", std::to_string(*options.every), *options.every, 1, kMaxNumber);
  resolved.every = options.every.value_or(64);
  resolved.allow = options.allow.value_or(std::string(kMasks));
  resolved.allow_in_backward_with_scaler = options.allow_in_backward_with_scaler.value_or(false);
  return resolved;
}

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
  const Text mode = text_setting(options.mode, "mode=", "OP_TIME_MEASURE_MODE", "sync");
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

CastSettings cast_settings(const std::optional<std::string>& argument, std::string_view otherwise) {
  constexpr std::string_view kVariable = "OP_DTYPE_CAST_DICT";
  Text text = text_setting(argument, "cast=", std::string(kVariable), otherwise);
  CastSettings settings{std::move(text.value), std::move(text.source), {}};
  if (argument) return settings;
  const std::string ending = "_" + std::string(kVariable);
  for (auto& [name, value] : environment_containing(ending)) {
    const bool ends =
        name.size() > ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
    if (ends && !value.empty()) settings.by_op.emplace_back(name, value);
  }
  return settings;
}

ResolvedFallbackOptions resolve(const FallbackOptions& options) {
  ResolvedFallbackOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_FALLBACK");
  constexpr const char* kDipuList = "DIPU_FORCE_FALLBACK_OPS_LIST";
  const bool own_list = options.ops || environment("OP_FALLBACK_LIST");
  if (const auto list = environment(kDipuList); list && !own_list) {
    if (resolved.level == Level::kAten) {
      const Text skip = text_setting(options.skip, "skip=", "OP_FALLBACK_DISABLE_LIST", "");
      resolved.filter = std::make_shared<OpFilter>(from_dipu_list(*list), skip.value, kDipuList, skip.source);
    } else {
      log::warn(std::string(kDipuList) +
                " names operators of the aten level and is not read at the torch level: use level=\"aten\"");
    }
  }
  resolved.on_missing = bool_setting(options.on_missing, "OP_FALLBACK_ON_MISSING");
  resolved.cast = cast_settings(options.cast, "");
  return resolved;
}

ResolvedDtypeCastOptions resolve(const DtypeCastOptions& options) {
  ResolvedDtypeCastOptions resolved;
  static_cast<ResolvedOptions&>(resolved) = resolve(static_cast<const ToolOptions&>(options), "OP_DTYPE_CAST");
  resolved.cast = cast_settings(options.cast, "torch.float16->torch.float32, torch.bfloat16->torch.float32");
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
