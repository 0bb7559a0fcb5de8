#include "capture/record_writer.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/disk_time.h"
#include "base/error.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/run_folder.h"
#include "base/text_table.h"
#include "report/row_file.h"
#include "tensor/dispatch_keys.h"

namespace op_tools {
namespace {

// A record costs memory besides its tensors: a queue of empty records must be bounded too.
constexpr size_t kRecordOverhead = 2048;
// While records keep coming the writer looks for them by itself this often, so that submitting a record wakes no
// thread: a wake-up costs the program more than a small call's copy. This much waits for it at most without it being
// woken.
constexpr auto kNap = std::chrono::milliseconds(1);
constexpr size_t kWakeAt = size_t{1} << 20;
// Records with few bytes that hold objects of the program's thread go back to it when they are written, N at
// most, and are freed there: the C library has a single lock for the memory of a thread, and a thread that frees
// another's by the thousand stops that thread.
constexpr size_t kSmallRecord = size_t{64} << 10;
constexpr size_t kMostWritten = 256;
// Capacity that lists of records keep while they are empty.
constexpr size_t kMostRoom = 4096;
// The writer reports its work after N small records, or bytes.
constexpr size_t kReportRecords = 32;
constexpr size_t kReportBytes = size_t{1} << 20;
constexpr auto kQuiet = std::chrono::seconds(1);
constexpr auto kRedraw = std::chrono::milliseconds(100);

// A small program fills a disk in an hour: the hint comes early, once per process.
constexpr uint64_t kHintAt = 100'000'000;
constexpr const char* kHowToLimit =
    "less with ops=, modules=, steps=, max_calls=, max_per_signature=, dedupe=True or max_gb=";

std::string bar(uint64_t done, uint64_t total) {
  constexpr uint64_t kWidth = 30;
  const uint64_t filled = total == 0 ? kWidth : done * kWidth / total;
  return "op_tools: writing captured calls [" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "] " +
         std::to_string(done) + "/" + std::to_string(total);
}

}  // namespace

struct RecordWriter::Impl : FlushedAtExit {
  using Clock = DiskWait::Clock;

  Impl(std::function<std::unique_ptr<CallStore>()> open, int64_t max_pending_bytes, DiskBudget budget,
       std::chrono::duration<double> time_limit)
      : open(std::move(open)),
        budget(std::move(budget)),
        disk(time_limit),
        max_pending(static_cast<size_t>(max_pending_bytes)),
        resume_at(max_pending / 4 * 3),
        report_at(std::min(max_pending / 16, kReportBytes)) {}

  const std::function<std::unique_ptr<CallStore>()> open;
  DiskBudget budget;  // writer thread only
  DiskWait disk;      // when it is stuck, records in hand are lost
  const size_t max_pending;
  // A program that found no room goes on when there is a good deal of it: else it would be put to sleep and woken for
  // each small record, which costs both threads more than the record.
  const size_t resume_at;
  const size_t report_at;
  const ForkGuard process;  // of the writer

  mutable std::mutex mutex;
  std::condition_variable work, room, done;
  std::vector<Record> queue;
  std::vector<Record> written;  // to be freed by the next that submits
  size_t pending_bytes = 0;
  uint64_t submitted = 0, finished = 0;
  uint64_t flush_until = 0;  // flush the store once `finished` is here
  uint64_t flushed = 0;
  bool stopping = false;
  bool napping = false;  // the writer looks again by itself within kNap
  Progress progress;
  std::atomic<bool> closed{false};
  bool hinted = false;  // writer thread only
  std::thread thread;

  std::unique_ptr<CallStore> store;                       // writer thread only
  std::unordered_map<std::string, uint64_t> saved_calls;  // by operator; likewise

  void fail(const std::string& problem, std::unique_lock<std::mutex>& lock) {
    const bool first = progress.failure.empty();
    if (first) progress.failure = problem;
    closed.store(true);
    if (!first) return;
    lock.unlock();
    log::error("OpCapture cannot write and is disabled; the program goes on: " + problem);
    lock.lock();
  }

  // False when there is no room on the disk for it, by the budget.
  bool has_room(size_t bytes) {
    if (!store) {
      store = open();
      std::lock_guard<std::mutex> lock(mutex);
      progress.root = store->root();
    }
    const std::string why = budget.refusal(store->root(), store->bytes_written(), bytes);
    if (why.empty()) return true;
    closed.store(true);
    {
      std::lock_guard<std::mutex> lock(mutex);
      progress.limit = why;
    }
    log::warn("OpCapture stops, and the program goes on: " + why + "; " + kHowToLimit);
    return false;
  }

  void hint_at_limits() {
    if (hinted || store->bytes_written() < kHintAt) return;
    hinted = true;
    static std::atomic<bool> of_process{false};
    if (of_process.exchange(true)) return;
    log::notice("OpCapture has written " + bytes_text(store->bytes_written()) + " to " + shown_path(store->root()) +
                " so far; " + kHowToLimit);
  }

  void write(const SavedCall& call) {
    const bool is_forward = !call.args.is<None>();
    if (is_forward && log::enabled(log::Level::kInfo)) log::info("apply OpCaptureHook on " + call.name);
    write_call(*store, call);
    if (is_forward) ++saved_calls[call.name];
  }

  // For the account of the run: calls that are removed later are known to be missing.
  void note_saved_calls() const {
    for (const auto& [op, count] : saved_calls) note_row_count(store->root() + "/" + op, count);
  }

  // Waits for the writer until `ready`, with the lock held, and to `until` at most. False: not ready.
  template <class Ready>
  bool wait_for_disk(std::condition_variable& news, std::unique_lock<std::mutex>& lock, Clock::time_point until,
                     const Ready& ready) {
    if (disk.wait(news, lock, until, ready)) return true;
    if (disk.is_stuck()) {
      fail((progress.root.empty() ? "the output folder" : progress.root) + ": " + disk.text(), lock);
      room.notify_all();
      done.notify_all();
    }
    return false;
  }

  // Waits until there is something to do; with the lock held.
  void wait_for_work(std::unique_lock<std::mutex>& lock) {
    const auto ready = [&] { return stopping || !queue.empty() || flushed < flush_until; };
    if (ready()) return;
    napping = true;
    const bool busy = work.wait_for(lock, kNap, ready);
    napping = false;
    if (!busy) work.wait(lock, ready);
  }

  // With the lock held: everything is written, and made readable for threads that wait in flush(), or before going.
  void flush_store(std::unique_lock<std::mutex>& lock) {
    const uint64_t upto = finished;
    if (store && flushed < upto) {
      const std::vector<Record> dying = std::exchange(written, {});
      lock.unlock();
      std::string failure;
      try {
        store->flush();
        note_saved_calls();
      } catch (const std::exception& error) {
        failure = error.what();
      }
      lock.lock();
      progress.bytes = store->bytes_written();
      if (!failure.empty()) fail(failure, lock);
    }
    flushed = std::max(flushed, upto);
    done.notify_all();
  }

  // The work since the last report(): the lock is not taken for each small record.
  struct Done {
    uint64_t written = 0, lost = 0, left_out = 0;
    uint64_t records() const { return written + lost + left_out; }
    size_t bytes = 0;
    std::vector<Record> small;
  };

  void report(Done done) {
    std::lock_guard<std::mutex> lock(mutex);
    progress.records += done.written;
    progress.lost += done.lost;
    progress.left_out += done.left_out;
    if (store) progress.bytes = store->bytes_written();
    if (done.written > 0) log::progress(total_text());
    for (Record& record : done.small) {
      if (written.size() < kMostWritten) written.push_back(std::move(record));
    }
    pending_bytes -= done.bytes;
    finished += done.records();
    if (pending_bytes <= resume_at) room.notify_all();
  }

  bool is_out_of_room() {
    std::lock_guard<std::mutex> lock(mutex);
    return !progress.limit.empty();
  }

  // With the lock held.
  std::string total_text() const {
    return "OpCapture: " + std::to_string(progress.records) + " records, " + bytes_text(progress.bytes) + " in " +
           progress.root;
  }

  // Leaves an empty list with its room.
  void write_all(std::vector<Record>& records) {
    Done done;
    for (Record& record : records) {
      try {
        if (closed.load() || !has_room(record.bytes)) {
          ++(is_out_of_room() ? done.left_out : done.lost);
        } else {
          write(record.unpack(record.packed));
          ++done.written;
          hint_at_limits();
        }
      } catch (const std::exception& error) {
        ++done.lost;
        std::unique_lock<std::mutex> lock(mutex);
        fail(error.what(), lock);
      }
      disk.moved();
      done.bytes += record.bytes + kRecordOverhead;
      if (record.packed.has_objects() && record.bytes <= kSmallRecord) {
        done.small.push_back(std::move(record));
      } else {
        const Packed gone = std::move(record.packed);  // freed before the program hears that there is room
      }
      if (done.records() >= kReportRecords || done.bytes >= report_at) report(std::exchange(done, Done()));
    }
    report(std::move(done));
    records.clear();
    if (records.capacity() > kMostRoom) std::vector<Record>().swap(records);
  }

  void run() {
    pthread_setname_np(pthread_self(), "op_capture");  // as `top -H` and debuggers show it; 15 characters at most
    // Its operators are ours. Other tools that are on would count them as work of the program that they did not see,
    // and a run in which that is more than they saw has no verdict.
    const c10::impl::ExcludeDispatchKeyGuard ours(kInterceptorKey);
    std::vector<Record> records;
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      wait_for_work(lock);
      disk.moved();
      if (!queue.empty()) {
        std::swap(queue, records);
        lock.unlock();
        write_all(records);
        lock.lock();
        continue;
      }
      flush_store(lock);
      if (stopping && queue.empty()) return;
    }
  }

  void flush() {
    if (process.in_child()) return;
    std::unique_lock<std::mutex> lock(mutex);
    if (!thread.joinable()) return;
    const uint64_t target = submitted;
    if (flushed >= target || disk.is_stuck()) return;
    if (pending_bytes == 0) disk.moved();
    flush_until = std::max(flush_until, target);
    work.notify_all();
    const uint64_t first = finished;
    auto ready = [&] { return flushed >= target; };
    if (wait_for_disk(done, lock, Clock::now() + kQuiet, ready)) return;
    while (!disk.is_stuck() && !wait_for_disk(done, lock, Clock::now() + kRedraw, ready)) {
      const std::string text = bar(finished - first, target - first);
      lock.unlock();
      log::progress(text);
      lock.lock();
    }
    lock.unlock();
    log::progress("");
  }

  void flush_at_exit() override { flush(); }
};

RecordWriter::RecordWriter(std::function<std::unique_ptr<CallStore>()> open, int64_t max_pending_bytes,
                           DiskBudget budget, std::chrono::duration<double> time_limit)
    : impl_(std::make_shared<Impl>(std::move(open), max_pending_bytes, std::move(budget), time_limit)) {
  flush_at_exit(impl_);
}

RecordWriter::~RecordWriter() {
  if (impl_->process.in_child()) {
    // The thread does not exist in this process and the mutexes may be locked for ever: leave all of it alone.
    new std::shared_ptr<Impl>(std::move(impl_));  // NOLINT: leaked
    return;
  }
  flush();
  std::thread thread;
  bool is_stuck = false;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    thread = std::move(impl_->thread);
    is_stuck = impl_->disk.is_stuck();
    impl_->stopping = true;
    impl_->work.notify_all();
  }
  log::progress("");
  if (!thread.joinable()) return;
  if (is_stuck) {
    thread.detach();  // it keeps what it needs
  } else {
    thread.join();
  }
}

bool RecordWriter::submit(Record record) {
  Impl& impl = *impl_;
  if (impl.process.in_child()) return false;
  const size_t bytes = record.bytes + kRecordOverhead;
  std::unique_lock<std::mutex> lock(impl.mutex);
  if (impl.closed.load()) {
    ++(impl.progress.limit.empty() ? impl.progress.lost : impl.progress.left_out);
    return false;
  }
  const auto fits = [&] { return impl.pending_bytes == 0 || impl.pending_bytes + bytes <= impl.max_pending; };
  if (impl.pending_bytes == 0) impl.disk.moved();
  if (!fits()) {
    ++impl.progress.waits;
    const auto has_room = [&] { return impl.pending_bytes <= impl.resume_at && fits(); };
    if (!impl.wait_for_disk(impl.room, lock, Impl::Clock::time_point::max(), has_room)) {
      ++impl.progress.lost;
      return false;
    }
  }
  if (!impl.thread.joinable()) impl.thread = std::thread([impl = impl_] { impl->run(); });
  impl.pending_bytes += bytes;
  ++impl.submitted;
  impl.queue.push_back(std::move(record));
  const std::vector<Record> dying = std::exchange(impl.written, {});
  const bool wake = !impl.napping || impl.pending_bytes > kWakeAt;
  lock.unlock();
  if (wake) impl.work.notify_one();
  return true;
}

void RecordWriter::flush() {
  impl_->flush();
}

RecordWriter::Progress RecordWriter::progress() const {
  if (impl_->process.in_child()) return {};
  std::lock_guard<std::mutex> lock(impl_->mutex);
  Progress progress = impl_->progress;
  if (impl_->disk.is_stuck()) progress.lost += impl_->submitted - impl_->finished;
  return progress;
}

bool RecordWriter::is_closed() const {
  return impl_->closed.load();
}

}  // namespace op_tools
