// Operators that run where no tool follows, while tools are on: in threads that were there before (a pool's, a
// library's), in processes that were forked without tools, and, for tools of the torch level, where C++ code calls
// them. The package makes an UnseenCalls when it switches a tool on, and ends it with the tool. Thread-safe.
//
// torch asks a single record-function callback of ours at 1 of kOneOf operators of each thread. It is registered when
// the first of these objects is made and stays: adding or removing a callback makes every thread read its callbacks
// anew. Threads whose begin is known (CountedThread) are counted exactly.
#pragma once

#include <cstdint>
#include <memory>

#include "base/export.h"

namespace op_tools {

class OP_TOOLS_API UnseenCalls {
 public:
  // Of the dispatcher's operators, those that other operators call among them.
  struct Count {
    uint64_t threads = 0;
    uint64_t calls = 0;            // an estimate
    uint64_t calls_on_device = 0;  // of them: with a tensor on a device other than the host
    uint64_t processes = 0;        // forked ones that ran operators
    // Of threads that the torch level follows: outside of its calls, and of backward passes. An estimate.
    uint64_t native_calls = 0;
    uint64_t native_calls_on_device = 0;
    uint64_t scripts = 0;  // functions of TorchScript, by name, whose operators the torch level does not see
  };

  UnseenCalls();  // counts from now on
  ~UnseenCalls();
  UnseenCalls(const UnseenCalls&) = delete;
  UnseenCalls& operator=(const UnseenCalls&) = delete;

  void end();  // the counts stay
  Count count() const;

  static constexpr int kOneOf = 64;

 private:
  friend class Watches;
  struct Part;
  const std::unique_ptr<Part> part_;
};

// A thread that begins, and follows no tool: its operators are counted singly, or, where they are none of the
// program's model, not at all. Made in that thread, and destroyed there when it ends.
class OP_TOOLS_API CountedThread {
 public:
  static bool is_wanted();  // is any UnseenCalls counting?
  explicit CountedThread(bool counts);
  ~CountedThread();
  CountedThread(const CountedThread&) = delete;
  CountedThread& operator=(const CountedThread&) = delete;

 private:
  const uint64_t callback_;
};

// While an object lives, processes that this thread forks are accounted for otherwise.
class OP_TOOLS_API KnownFork {
 public:
  KnownFork();
  ~KnownFork();
  KnownFork(const KnownFork&) = delete;
  KnownFork& operator=(const KnownFork&) = delete;
};

// In a forked child, in the thread that it has: where its tools are off, it counts from its first operator on.
void unseen_process_begins(bool any_hook_went_on);

}  // namespace op_tools
