// Messages for people, to standard error. Torch-free and fmt-free on purpose: torch ships a fmt that
// Debian's spdlog does not compile with, so log.cpp is the only file that sees spdlog.
// Level from OP_TOOLS_LOG_LEVEL (trace, debug, info, notice, warn, error, critical, off), read when the first message
// is logged and again by reload_level(). Thread-safe. Never throws.
//   info    a line for each call (with OP_TOOLS_COMPAT=ditorch the default)
//   notice  the findings of a run, and its folder: a few lines for each run; the default
#pragma once

#include <string>
#include <string_view>

#include "base/export.h"

namespace op_tools::log {

enum class Level { kTrace, kDebug, kInfo, kNotice, kWarn, kError, kCritical, kOff };

// True when a message of this level would be written: ask before building an expensive text.
OP_TOOLS_API bool enabled(Level level) noexcept;
OP_TOOLS_API void write(Level level, std::string_view message) noexcept;

inline void debug(std::string_view message) noexcept {
  write(Level::kDebug, message);
}
inline void info(std::string_view message) noexcept {
  write(Level::kInfo, message);
}
inline void notice(std::string_view message) noexcept {
  write(Level::kNotice, message);
}
inline void warn(std::string_view message) noexcept {
  write(Level::kWarn, message);
}
inline void error(std::string_view message) noexcept {
  write(Level::kError, message);
}

// Reads OP_TOOLS_LOG_LEVEL again. A value that is no level: an Error that names variable and value.
OP_TOOLS_API void reload_level();

// Draws `text` in place of the current line on a terminal (a progress bar); nothing when standard error
// is not a terminal. An empty text clears the line. Messages written meanwhile come above it.
OP_TOOLS_API void progress(std::string_view text) noexcept;

}  // namespace op_tools::log
