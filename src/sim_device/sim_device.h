// A simulated accelerator: torch device "sim" (PrivateUse1) on host memory, with planted faults and latencies. To
// show or test a device-against-CPU tool without hardware; nothing of op_tools loads it by itself.
//
//   op_tools::sim_device::load();                                   // then torch::Device("sim:0") works
//   op_tools::sim_device::Fault fault({.kind = "scale", .ops = "mm|addmm", .calls = {{0, 10}}});
//   ...; fault.hits();                                           // how often a result really became wrong
//
// Thread-safe. A process has a single PrivateUse1 device: load() refuses where another vendor has taken it. load()
// comes before the first backward() of the process, because torch's autograd counts devices once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"

namespace op_tools::sim_device {

inline constexpr int kDevices = 2;  // sim:0 and sim:1

// Registers the device, then plants the faults of OP_TOOLS_SIM_FAULTS, OP_TOOLS_SIM_LATENCY and OP_TOOLS_SIM_ROUNDING.
// Again: nothing. Throws Error when PrivateUse1 is taken, or a variable is wrong.
OP_TOOLS_API void load();
OP_TOOLS_API bool is_loaded();

// Kernels run on the stream's worker thread (the default), or in the thread that calls. Waits for all queued work.
OP_TOOLS_API void set_asynchronous(bool on);
OP_TOOLS_API bool is_asynchronous();

// Kernels round as another correct implementation would: sums run in another order, the last bit of results
// differs in places. Off: results have the CPU's bits. Waits for all queued work. docs/sim_device.md#rounding.
OP_TOOLS_API void set_rounding(bool on);
OP_TOOLS_API bool is_rounding();

// Work that was never waited for must not meet a process that is being taken down: waits for it; a failure is a
// warning. Runs at exit, too.
OP_TOOLS_API void finish();

OP_TOOLS_API void manual_seed(uint64_t seed);  // the generators of all devices
OP_TOOLS_API bool in_forked_child();           // where it cannot be used: its streams are threads of the parent
OP_TOOLS_API void synchronize();               // waits for all streams of all devices; throws a kernel's exception

struct Statistics {
  int64_t calls = 0;         // operators that reached the device, views included
  int64_t asynchronous = 0;  // of them: run later, by a worker thread
  int64_t views = 0;         // of them: views, which no device runs
  int64_t allocations = 0;   // ever made
  int64_t live_allocations = 0;
  int64_t allocated_bytes = 0;
  int64_t peak_bytes = 0;
};
OP_TOOLS_API Statistics statistics(int device = 0);  // calls, asynchronous, views: of all devices
OP_TOOLS_API void reset_peak(int device = 0);

// --- Faults. docs/sim_device.md has the table of kinds.

// Which of the calls that match, counted from 0: first, first + step, ... below last.
struct CallRange {
  int64_t first = 0;
  int64_t last = 0;  // not included
  int64_t step = 1;
};

struct FaultOptions {
  std::string kind{};
  std::string ops{};                 // an OpFilter list of names as they reach the device ("aten::mm"); empty: all
  std::optional<CallRange> calls{};  // unset: all
  double probability = 1;            // of a matching call, drawn with `seed`
  uint64_t seed = 0;
  std::optional<double> scale{};         // by how much values are wrong; the default depends on the kind
  std::optional<int64_t> size{};         // above_size: the first N elements are right
  std::optional<double> microseconds{};  // latency: so much longer on the device
};

class OP_TOOLS_API Fault {
 public:
  // Planted from here on, or with start(). Error when an option is wrong.
  explicit Fault(FaultOptions options, bool started = true);
  ~Fault();  // taken out; its effects stay
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

  void start();  // again after stop(); call numbers and random draws go on where they were
  void stop();

  int64_t matched() const;                                   // calls that its `ops` matched
  int64_t hits() const;                                      // calls in which it changed something
  std::vector<std::pair<std::string, int64_t>> log() const;  // (operator, number of the call), the first 10,000

  struct State;  // the fault as the device knows it

 private:
  std::shared_ptr<State> state_;
};
OP_TOOLS_API std::vector<std::string> fault_kinds();
OP_TOOLS_API void faults_clear();  // takes out all faults of the process and frees the memory that `leak` held

// While it lives, an operator that an expression matches takes at least N microseconds on the device, on the
// stream's queue. The newest object that matches counts, and in it the first expression.
class OP_TOOLS_API Latency {
 public:
  explicit Latency(const std::vector<std::pair<std::string, double>>& microseconds, bool started = true);
  ~Latency();
  Latency(const Latency&) = delete;
  Latency& operator=(const Latency&) = delete;

  void start();
  void stop();

  struct State;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace op_tools::sim_device
