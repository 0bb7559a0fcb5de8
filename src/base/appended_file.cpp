#include "base/appended_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork_guard.h"

namespace op_tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostWaiting = size_t{64} << 20;
// A disk that takes bytes within it is not slow.
constexpr auto kMoment = std::chrono::milliseconds(20);
// Of a time limit: a clock cannot count much more.
constexpr std::chrono::duration<double> kLongest = std::chrono::hours(24 * 365);

bool is_want_of_room(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

}  // namespace

struct AppendedFile::Writer {
  std::string path;
  int descriptor = -1;
  Clock::duration time_limit{};
  const ForkGuard process;

  std::mutex mutex;
  std::condition_variable work, news;
  std::deque<std::string> queue;
  size_t waiting = 0;                      // bytes, with those that are being written
  uint64_t taken = 0;                      // bytes of the file
  Clock::time_point moved = Clock::now();  // the disk took something, or the first bytes began to wait
  std::string problem;                     // of a write, until a caller has been told
  bool is_full = false;
  bool is_stuck = false;  // the disk took nothing for the time limit
  bool stopping = false;
  bool has_thread = false;

  ~Writer() { ::close(descriptor); }

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
      lock.lock();
      moved = Clock::now();
      if (error == 0) {
        waiting -= bytes.size();
        taken += bytes.size();
      } else {
        queue.clear();  // what was appended behind it may need it
        waiting = 0;
        is_full = is_want_of_room(error);
        problem = path + ": cannot be written: " + std::strerror(error) + (is_cut ? "; its end is cut off" : "");
      }
      news.notify_all();
    }
  }

  // Waits until `ready`, with the lock held, no longer than the disk may be silent, and to `until` at most.
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point until, const Ready& ready) {
    while (!ready() && problem.empty() && !is_stuck) {
      const Clock::time_point limit = moved + time_limit;
      if (Clock::now() >= limit) is_stuck = true;
      if (is_stuck || Clock::now() >= until) return;
      news.wait_until(lock, std::min(until, limit));
    }
  }

  // With the lock held.
  void report() {
    if (!problem.empty()) throw Error(std::exchange(problem, {}));
    if (!is_stuck) return;
    throw Error(path + ": took nothing for " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time_limit).count()) +
                " s (write_timeout=)");
  }

  std::unique_lock<std::mutex> wait_for_all() {
    std::unique_lock<std::mutex> lock(mutex);
    wait(lock, Clock::time_point::max(), [&] { return waiting == 0; });
    return lock;
  }
};

namespace {

// A process that ends while bytes wait still writes them. Leaked: used by an exit handler.
template <class Writer>
class OpenFiles {
 public:
  static OpenFiles& get() {
    static auto* const open = new OpenFiles;
    return *open;
  }
  void add(const std::shared_ptr<Writer>& writer) {
    static std::once_flag once;
    std::call_once(once, [] { std::atexit([] { get().wait_for_all(); }); });
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(writers_, [](const std::weak_ptr<Writer>& other) { return other.expired(); });
    writers_.push_back(writer);
  }

 private:
  void wait_for_all() {
    // In a forked child the lock may be held for ever by a thread of the parent.
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    for (const std::weak_ptr<Writer>& writer : writers_) {
      const std::shared_ptr<Writer> open = writer.lock();
      if (open && !open->process.in_child()) open->wait_for_all();
    }
  }
  std::mutex mutex_;
  std::vector<std::weak_ptr<Writer>> writers_;
};

}  // namespace

AppendedFile::AppendedFile(std::string path, std::chrono::duration<double> time_limit, Present present)
    : path_(std::move(path)), writer_(std::make_shared<Writer>()) {
  writer_->path = path_;
  writer_->time_limit = std::chrono::duration_cast<Clock::duration>(std::min(time_limit, kLongest));
  struct stat status = {};
  const bool is_present = present == Present::kReplaced && ::lstat(path_.c_str(), &status) == 0;
  const bool is_file = is_present && (S_ISREG(status.st_mode) || S_ISLNK(status.st_mode));
  if (is_file) ::unlink(path_.c_str());
  const int how = is_present && !is_file ? 0 : O_CREAT | O_EXCL;
  writer_->descriptor = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | how, 0644);
  if (writer_->descriptor < 0) throw Error(path_ + ": cannot make the file: " + std::strerror(errno));
  OpenFiles<Writer>::get().add(writer_);
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
  if (!is_behind) writer.moved = Clock::now();
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
