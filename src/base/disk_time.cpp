#include "base/disk_time.h"

#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/option.h"

namespace op_tools {
namespace {

constexpr const char* kVariable = "OP_TOOLS_WRITE_TIMEOUT";
// A clock cannot count much more.
constexpr std::chrono::duration<double> kLongest = std::chrono::hours(24 * 365);

DiskWait::Clock::duration countable(std::chrono::duration<double> limit) {
  return std::chrono::duration_cast<DiskWait::Clock::duration>(std::min(limit, kLongest));
}

struct Job {
  std::mutex mutex;
  std::condition_variable news;
  bool has_ended = false;
  std::exception_ptr failure;
};

// Leaked: used by an exit handler.
struct OpenWriters {
  std::mutex mutex;
  std::vector<std::weak_ptr<FlushedAtExit>> writers;
};
OpenWriters& open_writers() {
  static auto* const open = new OpenWriters;
  return *open;
}

void flush_all() {
  // In a forked child the lock may be held for ever by a thread of the parent.
  const std::unique_lock<std::mutex> lock(open_writers().mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const std::weak_ptr<FlushedAtExit>& writer : open_writers().writers) {
    if (const std::shared_ptr<FlushedAtExit> open = writer.lock()) open->flush_at_exit();
  }
}

}  // namespace

std::chrono::duration<double> disk_silence() {
  return std::chrono::duration<double>(number_in_environment(kVariable, kAboveZero, kDiskSilence));
}

double most_gigabytes_of_rows() {
  return number_in_environment("OP_TOOLS_MAX_ROWS_GB", kAboveZero, 8);
}

void run_in_time(const std::string& path, std::chrono::duration<double> limit, std::function<void()> work) {
  const auto job = std::make_shared<Job>();
  std::thread([job, work = std::move(work)] {
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(job->mutex);
    job->has_ended = true;
    job->failure = failure;
    job->news.notify_all();
  }).detach();
  DiskWait disk(limit);
  std::unique_lock<std::mutex> lock(job->mutex);
  if (!disk.wait(job->news, lock, DiskWait::Clock::time_point::max(), [&] { return job->has_ended; })) {
    throw Error(path + ": " + disk.text());
  }
  if (job->failure) std::rethrow_exception(job->failure);
}

DiskWait::DiskWait(std::chrono::duration<double> limit) : limit_(countable(limit)) {}

std::string DiskWait::text() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit_);
  return "took nothing for " + std::to_string(seconds.count()) + " s (" + kVariable + ")";
}

void flush_at_exit(const std::shared_ptr<FlushedAtExit>& writer) {
  static std::once_flag once;
  std::call_once(once, [] { std::atexit(flush_all); });
  const std::lock_guard<std::mutex> lock(open_writers().mutex);
  std::erase_if(open_writers().writers, [](const std::weak_ptr<FlushedAtExit>& other) { return other.expired(); });
  open_writers().writers.push_back(writer);
}

}  // namespace op_tools
