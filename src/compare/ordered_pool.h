// Work that goes on beside the program: done by a few threads, its results handed over in the order in which it was
// submitted, one at a time. The memory of waiting work is bounded: when it is full, the submitting thread does its work
// itself, so no thread waits for a thread that may wait for it (a Python program holds the GIL here, and a worker may
// need it). Any thread may call anything. In a forked child the threads are gone: work is done at once.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace op_tools {

class OrderedPool {
 public:
  using Commit = std::function<void()>;  // must not throw
  using Work = std::function<Commit()>;  // must not throw; its Commit may be empty

  OrderedPool(size_t threads, size_t max_bytes);
  ~OrderedPool();  // submitted work is done first
  OrderedPool(const OrderedPool&) = delete;
  OrderedPool& operator=(const OrderedPool&) = delete;

  void submit(size_t bytes, Work work);
  void flush();  // returns when everything submitted before was handed over

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace op_tools
