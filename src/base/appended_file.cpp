#include "base/appended_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/disk_time.h"
#include "base/error.h"
#include "base/fork_guard.h"

namespace op_tools {
namespace {

using Clock = DiskWait::Clock;

constexpr size_t kMostWaiting = size_t{64} << 20;
// A disk that takes bytes within it is not slow.
constexpr auto kMoment = std::chrono::milliseconds(20);

bool is_want_of_room(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

}  // namespace

struct AppendedFile::Writer : FlushedAtExit {
  Writer(std::string path, int descriptor, std::chrono::duration<double> time_limit)
      : path(std::move(path)), descriptor(descriptor), disk(time_limit) {}

  const std::string path;
  const int descriptor;
  const ForkGuard process;

  std::mutex mutex;
  std::condition_variable work, news;
  std::deque<std::string> queue;
  DiskWait disk;
  size_t waiting = 0;   // bytes, with those that are being written
  uint64_t taken = 0;   // bytes of the file
  std::string problem;  // of a write, until a caller has been told
  bool is_full = false;
  bool stopping = false;
  bool has_thread = false;

  ~Writer() override { ::close(descriptor); }

  // Not under the lock. The system's error; 0: all of it is written.
  int write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return wrote == 0 ? EIO : errno;
      bytes.remove_prefix(static_cast<size_t>(wrote));
    }
    return 0;
  }

  // With the folder it was in, maybe. Only the kernel still has such a file: what is written to it, nobody can read. A
  // file system in user space may count no links of files that are there.
  bool is_removed() const {
    struct stat status = {};
    return ::fstat(descriptor, &status) == 0 && status.st_nlink == 0 && ::access(path.c_str(), F_OK) != 0;
  }

  void run() {
    pthread_setname_np(pthread_self(), "op_file");
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      const std::string bytes = std::move(queue.front());
      queue.pop_front();
      const uint64_t end = taken;
      lock.unlock();
      const int error = write(bytes);
      // What follows bytes that were cut off could not be read.
      const bool is_cut = error != 0 && (::ftruncate(descriptor, static_cast<off_t>(end)) != 0 ||
                                         ::lseek(descriptor, static_cast<off_t>(end), SEEK_SET) < 0);
      const bool is_lost = error == 0 && is_removed();
      lock.lock();
      disk.moved();
      if (error == 0) {
        waiting -= bytes.size();
        taken += bytes.size();
        if (is_lost) problem = path + ": was removed while it was written: what it had is lost";
      } else {
        queue.clear();  // what was appended behind it may need it
        waiting = 0;
        is_full = is_want_of_room(error);
        problem = path + ": cannot be written: " + std::strerror(error) + (is_cut ? "; its end is cut off" : "");
      }
      news.notify_all();
    }
  }

  // Waits until `ready`, or a write has failed, with the lock held.
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point until, const Ready& ready) {
    disk.wait(news, lock, until, [&] { return ready() || !problem.empty(); });
  }

  // With the lock held.
  void report() {
    if (!problem.empty()) throw Error(std::exchange(problem, {}));
    if (disk.is_stuck()) throw Error(path + ": " + disk.text());
  }

  std::unique_lock<std::mutex> wait_for_all() {
    std::unique_lock<std::mutex> lock(mutex);
    wait(lock, Clock::time_point::max(), [&] { return waiting == 0; });
    return lock;
  }

  void flush_at_exit() override {
    if (!process.in_child()) wait_for_all();
  }
};

namespace {

// A descriptor that nobody took is closed: its opening took longer than the limit.
struct OpenFile {
  int descriptor = -1;
  OpenFile(const std::string& path, AppendedFile::Present present) {
    struct stat status = {};
    const bool is_present = present == AppendedFile::Present::kReplaced && ::lstat(path.c_str(), &status) == 0;
    const bool is_file = is_present && (S_ISREG(status.st_mode) || S_ISLNK(status.st_mode));
    if (is_file) ::unlink(path.c_str());
    const int how = is_present && !is_file ? 0 : O_CREAT | O_EXCL;
    descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | how, 0644);
    if (descriptor < 0) throw Error(path + ": cannot make the file: " + std::strerror(errno));
  }
  OpenFile(OpenFile&& other) noexcept : descriptor(std::exchange(other.descriptor, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

}  // namespace

AppendedFile::AppendedFile(std::string path, std::chrono::duration<double> time_limit, Present present)
    : path_(std::move(path)) {
  OpenFile file = in_time(path_, time_limit, [path = path_, present] { return OpenFile(path, present); });
  writer_ = std::make_shared<Writer>(path_, std::exchange(file.descriptor, -1), time_limit);
  flush_at_exit(writer_);
}

AppendedFile::~AppendedFile() {
  if (writer_->process.in_child()) {
    // Its mutex may be locked for ever.
    new std::shared_ptr<Writer>(std::move(writer_));  // NOLINT: leaked
    return;
  }
  const std::unique_lock<std::mutex> lock = writer_->wait_for_all();
  writer_->stopping = true;
  writer_->work.notify_all();
}

void AppendedFile::append(std::string_view bytes) {
  Writer& writer = *writer_;
  if (writer.process.in_child()) return;
  std::unique_lock<std::mutex> lock(writer.mutex);
  writer.report();
  const bool is_behind = writer.waiting > 0;
  if (!is_behind) writer.disk.moved();
  if (is_behind && writer.waiting + bytes.size() > kMostWaiting) {
    writer.wait(lock, Clock::time_point::max(),
                [&] { return writer.waiting == 0 || writer.waiting + bytes.size() <= kMostWaiting; });
    writer.report();
  }
  if (!writer.has_thread) {
    std::thread([writer = writer_] { writer->run(); }).detach();
    writer.has_thread = true;
  }
  writer.waiting += bytes.size();
  writer.queue.emplace_back(bytes);
  writer.work.notify_one();
  if (!is_behind) writer.wait(lock, Clock::now() + kMoment, [&] { return writer.waiting == 0; });
  writer.report();
}

void AppendedFile::flush() {
  if (writer_->process.in_child()) return;
  const std::unique_lock<std::mutex> lock = writer_->wait_for_all();
  writer_->report();
}

bool AppendedFile::is_full() const {
  if (writer_->process.in_child()) return false;
  const std::lock_guard<std::mutex> lock(writer_->mutex);
  return writer_->is_full;
}

uint64_t AppendedFile::bytes() const {
  if (writer_->process.in_child()) return 0;
  const std::lock_guard<std::mutex> lock(writer_->mutex);
  return writer_->taken;
}

}  // namespace op_tools
