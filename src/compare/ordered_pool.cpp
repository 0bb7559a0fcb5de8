#include "compare/ordered_pool.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork_guard.h"

namespace op_tools {

struct OrderedPool::Impl {
  struct Item {
    uint64_t number;
    size_t bytes;
    Work work;
  };
  struct Done {
    Commit commit;
    size_t bytes;
  };

  size_t wanted_threads, max_bytes;
  const ForkGuard process;  // of the threads
  std::mutex mutex;
  std::condition_variable work, handed_over;
  std::deque<Item> queue;
  std::map<uint64_t, Done> done;  // by number: results that wait for their turn
  uint64_t submitted = 0, committed = 0;
  size_t waiting_bytes = 0;
  bool committing = false, stopping = false;
  std::vector<std::thread> threads;

  void finish(uint64_t number, Commit commit, size_t bytes) {
    std::unique_lock<std::mutex> lock(mutex);
    done.emplace(number, Done{std::move(commit), bytes});
    if (committing) return;  // who commits now sees ours, too
    committing = true;
    for (auto next = done.find(committed); next != done.end(); next = done.find(committed)) {
      Done item = std::move(next->second);
      done.erase(next);
      lock.unlock();
      if (item.commit) item.commit();
      item.commit = nullptr;  // frees its captures
      lock.lock();
      waiting_bytes -= item.bytes;
      ++committed;
    }
    committing = false;
    handed_over.notify_all();
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      Item item = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      Commit commit = item.work();
      item.work = nullptr;
      finish(item.number, std::move(commit), item.bytes);
      lock.lock();
    }
  }
};

OrderedPool::OrderedPool(size_t threads, size_t max_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->wanted_threads = threads;
  impl_->max_bytes = max_bytes;
}

OrderedPool::~OrderedPool() {
  if (impl_->process.in_child()) {
    impl_.release();  // NOLINT(bugprone-unused-return-value): its threads and locks belong to the parent
    return;
  }
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->work.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

void OrderedPool::submit(size_t bytes, Work work) {
  Impl& impl = *impl_;
  if (impl.process.in_child()) {
    if (const Commit commit = work()) commit();
    return;
  }
  std::unique_lock<std::mutex> lock(impl.mutex);
  const uint64_t number = impl.submitted++;
  const bool full = impl.waiting_bytes > 0 && impl.waiting_bytes + bytes > impl.max_bytes;
  impl.waiting_bytes += bytes;
  if (full) {
    lock.unlock();
    Commit commit;
    try {
      commit = work();
    } catch (...) {
      impl.finish(number, nullptr, bytes);  // later numbers wait for this
      throw;
    }
    impl.finish(number, std::move(commit), bytes);
    return;
  }
  while (impl.threads.size() < impl.wanted_threads) impl.threads.emplace_back([&impl] { impl.run(); });
  impl.queue.push_back({number, bytes, std::move(work)});
  lock.unlock();
  impl.work.notify_one();
}

void OrderedPool::flush() {
  Impl& impl = *impl_;
  if (impl.process.in_child()) return;
  std::unique_lock<std::mutex> lock(impl.mutex);
  const uint64_t target = impl.submitted;
  impl.handed_over.wait(lock, [&] { return impl.committed >= target; });
}

}  // namespace op_tools
