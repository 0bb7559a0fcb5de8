// The measured calls, in bounded memory: sums and a sketch of the durations per operator, shapes and place, and the
// single calls up to a limit; calls beyond it go to `overflow` in batches. Filled by the time hook from any thread,
// read by everything that shows it (time_report.h, time_files.h). Thread-safe.
//
// A thread puts its calls into a queue of its own, without a lock; a reader, and a thread whose queue is full,
// adds up all of them.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hooks/op_call.h"
#include "tensor/value.h"
#include "timing/durations.h"

namespace op_tools {

// Where in the program a call was made.
struct CallPlace {
  std::vector<std::string> stack;  // "file:line function", the user's innermost line first
  std::string module;              // LeNet.conv1
  std::string line() const { return stack.empty() ? std::string() : stack.front(); }
};

// The common details of calls of a signature.
struct CallDetails {
  std::string shapes, dtypes, device;  // of the input tensors
  Value sample;  // Tuple(args, kwargs) of the first call, its tensors as meta tensors; None: not known
};

// A measured call, or an autograd node of a backward pass that ran several.
struct TimedCall {
  int64_t start = 0;         // clock_now()
  int64_t nanoseconds = 0;   // the measured time
  int64_t self = 0;          // without measured calls that ran inside
  int64_t host = 0;          // how long the program's thread was in it
  int64_t device_start = 0;  // event mode: when the device began, on the host's clock; 0: not known
  uint64_t id = 0;
  int64_t step = 0;
  uint32_t entry = 0;
  uint32_t thread = 0;
  uint32_t pass = 0;
  bool failed = false;
  bool is_part = false;  // a node: drawn in the trace, counted with its pass
  bool has_parts = false;
};

// Bytes that a call touched or took.
struct CallBytes {
  int64_t read = 0, written = 0;
  int64_t allocated = 0, peak = 0;
};

struct TimeEntry {
  std::string op;
  Phase phase = Phase::kForward;
  uint32_t place = 0;
  CallDetails details;
  Durations times;
  int64_t self = 0;
  uint64_t failed = 0;
  CallBytes bytes;  // sums; `peak` the most of a single call
};

// How files name a single call.
struct EntryLabel {
  std::string op;
  Phase phase = Phase::kForward;
  std::string shapes, dtypes, device, line, module;
};

struct StepMark {
  int64_t step = 0;  // that began at `start`
  int64_t start = 0;
};

class TimeRecords {
 public:
  using Overflow = std::function<void(std::vector<TimedCall> calls)>;
  TimeRecords(size_t max_calls, Overflow overflow);
  ~TimeRecords();

  // The number of the row for these; `describe` is asked when it is new. Programs whose shapes never repeat share a
  // row per operator after the first kMostEntries.
  static constexpr size_t kMostEntries = 10'000;
  using Describe = c10::function_ref<CallDetails()>;
  uint32_t entry_of(std::string_view op, Phase phase, uint64_t signature, uint32_t place, Describe describe);
  void set_device(uint32_t entry, std::string device);
  // The number of a place; 0 stands for an unknown place.
  uint32_t place_of(CallPlace place);

  void add(const TimedCall& call, const CallBytes& bytes);
  void add_step(int64_t step, int64_t start);
  // Hands the calls that overflowed and wait in a batch to `overflow`.
  void flush_overflow();

  struct Snapshot {
    std::vector<TimeEntry> entries;
    std::vector<CallPlace> places;
    std::vector<StepMark> steps;
    uint64_t calls = 0;     // forward calls
    uint64_t backward = 0;  // backward passes
    uint64_t overflowed = 0;
  };
  Snapshot snapshot() const;
  // Those within the limit, each thread's in the order of their ends, all nearly so.
  std::vector<TimedCall> calls(size_t from) const;
  std::vector<EntryLabel> labels(size_t from) const;  // by entry
  CallDetails details(uint32_t entry) const;

 private:
  class ThreadQueue;
  struct ThisThread;
  struct OwnQueues;
  struct Sums {
    std::vector<TimeEntry> entries;
    std::vector<TimedCall> calls, batch;
    uint64_t forward = 0, backward = 0, overflowed = 0;
  };

  uint32_t find_entry(std::string_view op, Phase phase, uint64_t signature, uint32_t place, Describe describe);
  ThreadQueue* queue_of(ThisThread& mine);
  void add_locked(const TimedCall& call, const CallBytes& bytes) const;
  void add_queues_locked() const;
  void hand_over_full(std::unique_lock<std::mutex> lock);

  const uint64_t number_;  // of these records alone, from 1
  const size_t max_calls_;
  const Overflow overflow_;
  mutable std::mutex mutex_;
  // Changed by readers too: they add up the queues.
  mutable Sums sums_;
  mutable std::vector<std::shared_ptr<ThreadQueue>> queues_;
  std::unordered_map<uint64_t, uint32_t> entry_index_;
  std::vector<CallPlace> places_{CallPlace{}};
  std::unordered_map<std::string, uint32_t> place_index_;
  std::vector<StepMark> steps_;
};

}  // namespace op_tools
