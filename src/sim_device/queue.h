// A stream of the device: work in order, run by a worker thread of its own, and the device's clock. Issuing threads
// push and wait; any thread may. Queues live as long as the process, because workers are never joined.
//
// The clock is the device's and not the host's: an item begins when it arrived or when its predecessor ended,
// whichever is later, and lasts as long as its work took or as its latency says. That the worker's thread got its
// turn late does not count, so event times are exact on a loaded machine.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace op_tools::sim_device {

using Clock = std::chrono::steady_clock;

// A mark in a queue. Recorded again, only the latest mark counts.
class Event {
 public:
  uint64_t announce();  // a mark is on its way; its number
  void reach(uint64_t number, Clock::time_point time);
  void wait(uint64_t number) const;
  void wait() const;  // for the latest mark announced; at once when there is none
  bool reached() const;
  uint64_t latest() const;
  Clock::time_point time() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t announced_ = 0;
  uint64_t reached_ = 0;
  Clock::time_point time_;
};

class Queue {
 public:
  Queue(c10::DeviceIndex device, c10::StreamId id) : device_(device), id_(id) {}

  // `at_least`: how long it takes on the device, whatever the work itself takes.
  void push(std::function<void()> work, std::chrono::nanoseconds at_least = {});
  void record(std::shared_ptr<Event> event);
  void wait_for(std::shared_ptr<Event> event);  // later work runs after the event's latest mark

  void wait();  // until all pushed work is done; throws the exception of a work, once
  bool idle() const;

  c10::Stream stream() const { return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kPrivateUse1, device_), id_); }

 private:
  struct Item {
    std::function<void()> work{};
    std::chrono::nanoseconds at_least{};
    std::shared_ptr<Event> event{};  // to reach, or, without work and with `blocks`, to wait for
    uint64_t mark = 0;
    bool blocks = false;
    Clock::time_point arrived{};
  };
  void push(Item item);
  void push_locked(Item item);
  void run();
  void run(Item& item);

  const c10::DeviceIndex device_;
  const c10::StreamId id_;
  mutable std::mutex mutex_;
  std::condition_variable pushed_, done_;
  std::deque<Item> items_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool has_worker_ = false;
  std::exception_ptr failure_;
  Clock::time_point clock_;  // when the last item ended; of the worker while there are items
};

// The queue that the calling thread's work goes to, as set with torch's streams.
Queue& current_queue(c10::DeviceIndex device);
Queue& queue_for_work();  // of the current device; an error in a forked child
Queue& queue_of(const c10::Stream& stream);
Queue& pool_queue(c10::DeviceIndex device);              // from a few per device, in turn
c10::Stream exchange_stream(const c10::Stream& stream);  // of the calling thread; returns the previous stream
void wait_for_device(c10::DeviceIndex device);           // all its queues

}  // namespace op_tools::sim_device
