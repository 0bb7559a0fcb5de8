#include "blackbox/stall_reports.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/log.h"
#include "base/own_command.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "blackbox/stack_dump.h"
#include "timing/stopwatch.h"

namespace op_tools {
namespace {

double seconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

bool write_all(int descriptor, std::string_view text) {
  return ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// The copy comes first: it needs no process.
void write_copy_and_stacks(const BlackBoxFile& file, const std::string& title) {
  try {
    file.copy_to(file.path() + ".copy");
  } catch (const std::exception& error) {
    log::warn(std::string("OpBlackBox: ") + error.what());
  }
  const std::string path = file.path() + ".stacks";
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  if (write_all(descriptor, title + "\n") && !write_stacks(descriptor)) {
    write_all(descriptor, "The stacks could not be read: they changed all the time, or no process could be made.\n");
  }
  ::close(descriptor);
}

std::string described(const BlackBoxFile& file, const BlackBoxFile::Stuck& stuck) {
  using In = BlackBoxFile::Stuck::In;
  const BlackBoxCall& call = stuck.call;
  std::string text = "thread " + std::to_string(stuck.thread);
  if (stuck.in == In::kCall) text += call.kept == Kept::kCopying ? " copies the inputs of " : " is in ";
  if (stuck.in == In::kStream) text += " waits, and its device has not done ";
  if (stuck.in == In::kCollective) text += " may wait for ";
  if (stuck.in == In::kProgram) text += " is in no operator; the last was ";
  text += file.text(call.op);
  if (call.number) {
    text += " (number " + std::to_string(call.number) + " of process group " + std::string(file.text(call.group)) + ")";
  }
  if (call.module) text += ", module " + std::string(file.text(call.module));
  if (call.line) text += ", line " + std::string(file.text(call.line));
  return text;
}

}  // namespace

StallReports::StallReports(BlackBoxFile& file, StreamMarks& marks, double stall)
    : file_(file), marks_(marks), limit_(static_cast<int64_t>(stall * 1e9)), since_(clock_now()) {}

std::chrono::milliseconds StallReports::interval() const {
  constexpr int64_t kMost = 250;
  return std::chrono::milliseconds(limit_ > 0 ? std::clamp<int64_t>(limit_ / 4'000'000, 10, kMost) : kMost);
}

void StallReports::check() {
  const std::string request = file_.path() + ".ask";
  if (::access(request.c_str(), F_OK) == 0) {
    write_copy_and_stacks(file_, "OpBlackBox: " + request + " was there");
    ::unlink(request.c_str());  // last: who asked waits for it
  }
  const uint64_t progress = file_.progress();
  if (progress != seen_) {
    seen_ = progress;
    since_ = clock_now();
    return;
  }
  constexpr int64_t kQuiet = 500'000'000;
  const int64_t waited = clock_now() - since_;
  if (waited >= (limit_ > 0 ? std::min(limit_ / 2, kQuiet) : kQuiet)) marks_.look();
  if (limit_ > 0 && waited >= limit_ && reported_ != progress) report(waited);
}

// Nothing is asked of the stuck threads: they may hold any lock, Python's too.
void StallReports::report(int64_t waited) {
  const auto stuck = file_.stuck(clock_now() - waited + 1);
  if (!stuck) return;
  reported_ = file_.progress();
  const std::string text = "OpBlackBox: no call has begun or ended for " + formatted("%.1f", seconds(waited)) +
                           " s: " + described(file_, *stuck);
  write_copy_and_stacks(file_, text);
  const std::string path = shown_path(file_.path());
  log::warn(text + "; " + op_tools_line({"blackbox", path}) + " shows the calls, " + path + ".stacks has the stacks, " +
            path + ".copy the calls as they are now");
}

}  // namespace op_tools
