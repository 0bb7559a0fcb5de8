#include "sim_device/queue.h"

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "sim_device/device.h"

namespace op_tools::sim_device {
namespace {

constexpr size_t kStreams = 9;  // per device: the default stream and a pool
// Sleeping is exact to a few dozen microseconds, so the end of a wait is spent awake.
constexpr std::chrono::microseconds kAwake{150};

void wait_until(Clock::time_point end) {
  const auto now = Clock::now();
  if (end - now > kAwake) std::this_thread::sleep_for(end - now - kAwake);
  while (Clock::now() < end) {
  }
}

std::atomic<bool> forked = false;

struct Queues {
  Queues() {
    for (size_t device = 0; device < kDevices; ++device) {
      for (size_t id = 0; id < kStreams; ++id) {
        all[device][id] =
            std::make_unique<Queue>(static_cast<c10::DeviceIndex>(device), static_cast<c10::StreamId>(id));
      }
    }
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  }
  std::array<std::array<std::unique_ptr<Queue>, kStreams>, kDevices> all;
  std::array<std::atomic<size_t>, kDevices> next{};
};

// Never destroyed: workers wait in them until the process is gone.
Queues& queues() {
  static auto* queues = new Queues;  // NOLINT
  return *queues;
}

thread_local std::array<Queue*, kDevices> current{};

}  // namespace

// --- Event

uint64_t Event::announce() {
  const std::lock_guard lock(mutex_);
  return ++announced_;
}

void Event::reach(uint64_t number, Clock::time_point time) {
  const std::lock_guard lock(mutex_);
  if (number > reached_) {
    reached_ = number;
    time_ = time;
  }
  changed_.notify_all();
}

void Event::wait(uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= number; });
}

void Event::wait() const {
  wait(latest());
}

bool Event::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_ >= announced_;
}

uint64_t Event::latest() const {
  const std::lock_guard lock(mutex_);
  return announced_;
}

Clock::time_point Event::time() const {
  const std::lock_guard lock(mutex_);
  return time_;
}

// --- Queue

void Queue::push(std::function<void()> work, std::chrono::nanoseconds at_least) {
  push(Item{.work = std::move(work), .at_least = at_least});
}

void Queue::record(std::shared_ptr<Event> event) {
  const uint64_t mark = event->announce();
  const std::lock_guard lock(mutex_);
  if (completed_ == submitted_) {  // nothing to wait for: no thread is needed
    event->reach(mark, std::max(clock_, Clock::now()));
  } else {
    push_locked(Item{.event = std::move(event), .mark = mark});
  }
}

void Queue::wait_for(std::shared_ptr<Event> event) {
  if (event->reached()) return;
  const uint64_t mark = event->latest();
  push(Item{.event = std::move(event), .mark = mark, .blocks = true});
}

void Queue::push(Item item) {
  const std::lock_guard lock(mutex_);
  push_locked(std::move(item));
}

void Queue::push_locked(Item item) {
  item.arrived = Clock::now();
  items_.push_back(std::move(item));
  ++submitted_;
  if (!has_worker_) {
    std::thread([this] { run(); }).detach();
    has_worker_ = true;
  }
  pushed_.notify_one();
}

void Queue::run() {
  c10::setThreadName("sim_stream");
  prctl(PR_SET_TIMERSLACK, 1);  // else the kernel lets sleeps run 50 us over
  std::unique_lock lock(mutex_);
  for (;;) {
    pushed_.wait(lock, [this] { return !items_.empty(); });
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      run(item);
    } catch (...) {
      failure = std::current_exception();
    }
    item = {};  // the work's tensors are free before it counts as done
    lock.lock();
    if (failure && !failure_) failure_ = std::move(failure);
    ++completed_;
    done_.notify_all();
  }
}

void Queue::run(Item& item) {
  const auto begin = std::max(clock_, item.arrived);
  if (item.blocks) {
    item.event->wait(item.mark);
    clock_ = std::max(begin, item.event->time());
  } else if (item.event) {
    clock_ = begin;
    item.event->reach(item.mark, clock_);
  } else {
    const auto started = Clock::now();
    clock_ = begin + item.at_least;  // also when the work throws
    if (item.work) item.work();
    clock_ = begin + std::max<Clock::duration>(item.at_least, Clock::now() - started);
    if (item.at_least.count() > 0) wait_until(clock_);
  }
}

void Queue::wait() {
  if (forked) return;  // nothing of this process was ever queued
  std::unique_lock lock(mutex_);
  const uint64_t last = submitted_;
  done_.wait(lock, [&] { return completed_ >= last; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool Queue::idle() const {
  const std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

// --- The queues of the devices

Queue& current_queue(c10::DeviceIndex device) {
  Queue*& queue = current.at(static_cast<size_t>(device));
  if (!queue) queue = queues().all[static_cast<size_t>(device)][0].get();
  return *queue;
}

Queue& queue_for_work() {
  TORCH_CHECK(!forked,
              "The device sim cannot be used in a forked child process: its streams are threads of the parent. ",
              "Start processes with the method \"spawn\" or \"forkserver\".");
  return current_queue(current_device());
}

Queue& queue_of(const c10::Stream& stream) {
  return *queues().all.at(static_cast<size_t>(stream.device_index())).at(static_cast<size_t>(stream.id()));
}

Queue& pool_queue(c10::DeviceIndex device) {
  const size_t number = queues().next.at(static_cast<size_t>(device))++;
  return *queues().all[static_cast<size_t>(device)][1 + number % (kStreams - 1)];
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  Queue& queue = queue_of(stream);
  const c10::Stream before = current_queue(stream.device_index()).stream();
  current.at(static_cast<size_t>(stream.device_index())) = &queue;
  return before;
}

void wait_for_device(c10::DeviceIndex device) {
  std::exception_ptr failure;  // the first; a failed queue is no reason not to wait for the others
  for (const auto& queue : queues().all.at(static_cast<size_t>(device))) {
    try {
      queue->wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

bool in_forked_child() {
  return forked;
}

}  // namespace op_tools::sim_device
