// Work on a disk that may never answer: a network mount whose server is gone. Nobody can take a thread back from the
// system then, so such work has a thread of its own, and the program's thread waits no longer than a limit.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/export.h"

namespace op_tools {

// Default of OP_TOOLS_WRITE_TIMEOUT and of the options that it sets, in seconds.
inline constexpr double kDiskSilence = 300;

// How long a disk may take nothing where no option says it: OP_TOOLS_WRITE_TIMEOUT, or kDiskSilence. Throws Error when
// the variable has no such number.
OP_TOOLS_API std::chrono::duration<double> disk_silence();

// How large a tool's file of rows may be: OP_TOOLS_MAX_ROWS_GB. Throws likewise.
OP_TOOLS_API double most_gigabytes_of_rows();

// Runs `work` on another thread and returns when it has ended. Throws what it throws, and Error, which begins with
// `path`, when the limit is over: then the thread is left behind with `work`, which may refer to nothing of the caller.
OP_TOOLS_API void run_in_time(const std::string& path, std::chrono::duration<double> limit, std::function<void()> work);

// The same for work with a result.
template <class Work>
auto in_time(const std::string& path, std::chrono::duration<double> limit, Work work) {
  const auto result = std::make_shared<std::optional<std::invoke_result_t<Work>>>();
  run_in_time(path, limit, [result, work = std::move(work)] { result->emplace(work()); });
  return std::move(**result);
}

// How long a thread waits for another that writes: as long as the disk takes something within a limit.
class OP_TOOLS_API DiskWait {
 public:
  using Clock = std::chrono::steady_clock;
  explicit DiskWait(std::chrono::duration<double> limit);

  // The disk took something, or bytes begin to wait for it. Any thread.
  void moved() { moved_.store(Clock::now()); }

  // Waits for `news` until `ready()`, and to `until` at most. False: not ready. With the lock held, as is_stuck().
  template <class Ready>
  bool wait(std::condition_variable& news, std::unique_lock<std::mutex>& lock, Clock::time_point until,
            const Ready& ready) {
    while (!ready()) {
      const Clock::time_point end = moved_.load() + limit_;
      is_stuck_ = is_stuck_ || Clock::now() >= end;
      if (is_stuck_ || Clock::now() >= until) return false;
      news.wait_until(lock, std::min(until, end));
    }
    return true;
  }

  // A wait ended because the disk took nothing; it stays so.
  bool is_stuck() const { return is_stuck_; }
  // "took nothing for 300 s (OP_TOOLS_WRITE_TIMEOUT)"
  std::string text() const;

 private:
  const Clock::duration limit_;
  std::atomic<Clock::time_point> moved_{Clock::now()};
  bool is_stuck_ = false;
};

// Writers whose process must not end while something waits to be written: each that still lives is flushed at exit,
// as far as its disk lets it. Any thread.
class OP_TOOLS_API FlushedAtExit {
 public:
  virtual ~FlushedAtExit() = default;
  // Throws nothing; does nothing in a forked child.
  virtual void flush_at_exit() = 0;
};
OP_TOOLS_API void flush_at_exit(const std::shared_ptr<FlushedAtExit>& writer);

}  // namespace op_tools
