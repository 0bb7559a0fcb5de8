// The only file that includes spdlog; see log.h.
#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/fork_guard.h"
#include "base/printable.h"

namespace op_tools::log {
namespace {

constexpr const char* kLevelVariable = "OP_TOOLS_LOG_LEVEL";
constexpr std::array<std::string_view, 8> kLevelNames = {"trace", "debug", "info",     "notice",
                                                         "warn",  "error", "critical", "off"};

// A logger of spdlog has no level beside its own: a notice is written as its info.
spdlog::level::level_enum level_of_spdlog(Level level) {
  const int number = static_cast<int>(level);
  return static_cast<spdlog::level::level_enum>(level >= Level::kNotice ? number - 1 : number);
}

// nullopt when `text` names no level.
std::optional<Level> level_from(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto entry = std::find(kLevelNames.begin(), kLevelNames.end(), lower);
  if (entry == kLevelNames.end()) return std::nullopt;
  return static_cast<Level>(entry - kLevelNames.begin());
}

std::string_view level_variable() {
  const char* text = std::getenv(kLevelVariable);
  if (text && *text) return text;
  const char* compat = std::getenv("OP_TOOLS_COMPAT");
  return compat && std::string_view(compat) == "ditorch" ? "info" : "notice";
}

std::string not_a_level(std::string_view text) {
  return std::string(kLevelVariable) + ": '" + std::string(text) +
         "' is no level; allowed are trace, debug, info, notice, warn, error, critical, off";
}

spdlog::logger make_logger(const char* pattern) {
  // Single-threaded sink: State::mutex is the lock, so that a message and the progress line do not
  // mix.
  spdlog::logger logger("op_tools", std::make_shared<spdlog::sinks::stderr_sink_st>());
  logger.set_pattern(pattern);
  logger.set_level(spdlog::level::trace);  // State::level decides
  return logger;
}

// Never destroyed: hooks log from autograd threads and during exit.
struct State {
  State() {
    if (const auto wanted = level_from(level_variable())) {
      level = *wanted;
    } else {
      prefixed.warn(spdlog::string_view_t(not_a_level(level_variable()) + "; using notice"));
    }
    keep_free_in_children([]() -> std::mutex& { return get().mutex; });
  }

  static State& get() {
    static State* const state = new State;
    return *state;
  }

  void draw(std::string_view text) {
    if (!isatty(STDERR_FILENO)) return;
    winsize size{};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    // A line that wraps cannot be drawn over.
    std::string line = "\r\033[K" + std::string(text.substr(0, known ? size.ws_col - 1 : 79));
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
  }

  std::atomic<Level> level = Level::kNotice;
  std::mutex mutex;
  spdlog::logger plain = make_logger("%v");
  spdlog::logger prefixed = make_logger("op_tools %l: %v");
  std::string progress;
  std::chrono::system_clock::time_point drawn;  // when the progress line was drawn last
};

constexpr std::chrono::milliseconds kBetweenLines{200};  // of progress

}  // namespace

bool enabled(Level level) noexcept {
  try {
    return level != Level::kOff && level >= State::get().level.load(std::memory_order_relaxed);
  } catch (...) {
    return false;  // out of memory while the state was made: nothing can be written
  }
}

void write(Level level, std::string_view message) noexcept {
  if (!enabled(level)) return;
  try {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    if (!state.progress.empty()) state.draw("");
    auto& logger = level >= Level::kWarn ? state.prefixed : state.plain;
    const std::string shown = printable(message, "\n\t");  // names and errors come from outside
    logger.log(level_of_spdlog(level), spdlog::string_view_t(shown.data(), shown.size()));
    if (!state.progress.empty()) state.draw(state.progress);
  } catch (...) {
    // A message that cannot be written must not stop the program that is being watched.
  }
}

void reload_level() {
  const std::string_view text = level_variable();
  const auto wanted = level_from(text);
  if (!wanted) throw Error(not_a_level(text));
  State::get().level = *wanted;
}

void progress(std::string_view text) noexcept {
  if (!enabled(Level::kNotice)) return;
  try {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    if (text.empty() && state.progress.empty()) return;
    const auto now = std::chrono::system_clock::now();
    const bool is_early =
        !text.empty() && !state.progress.empty() && now >= state.drawn && now < state.drawn + kBetweenLines;
    state.progress = printable(text);
    if (is_early) return;  // a later line, or a message, shows it
    state.drawn = now;
    state.draw(state.progress);
  } catch (...) {
    // As in write().
  }
}

}  // namespace op_tools::log
