// A file that grows at its end, written on a thread of its own: the program waits for a slow disk as little as it can,
// and not for ever for one that is gone (a network mount whose server does not answer).
//
// append() returns when the bytes are the system's (a process that is killed loses none of them), or, where the disk
// needs longer than a moment, with the bytes waiting in memory. Of those at most 64 MB wait: then it waits for room, as
// long as the disk takes something within the time limit. One thread at a time; in a forked child nothing is written.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API AppendedFile {
 public:
  // `kReplaced`: in place of a file or a symbolic link of that name; a device or a pipe is written to. Throws Error,
  // with path and system message, as append() and flush() do.
  enum class Present : uint8_t { kRefused, kReplaced };
  AppendedFile(std::string path, std::chrono::duration<double> time_limit, Present present = Present::kRefused);
  // Writes everything that waits. A thread that the disk does not let go is left behind.
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  // Bytes that cannot be written as a whole are taken back, and those that wait behind them are dropped: the file ends
  // where an append() ended. The error may be that of an earlier one, and is one, too, where the file was removed.
  void append(std::string_view bytes);
  void flush();  // all that was appended is the system's

  bool is_full() const;    // the last error was a want of room
  uint64_t bytes() const;  // that the file has
  const std::string& path() const { return path_; }

 private:
  struct Writer;
  const std::string path_;
  std::shared_ptr<Writer> writer_;  // its thread holds it, too
};

}  // namespace op_tools
