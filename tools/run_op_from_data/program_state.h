// The state of the captured program that changes what an operator computes: read from meta.json,
// put in force for one replayed call, taken back after it.
//
// Some of it belongs to the thread (grad mode, inference mode, autocast, the number of threads),
// some to the process (default dtype, deterministic algorithms, matmul precision, random
// generators). With several workers, calls that agree about the process's part run side by side and
// the others alone: see StateGate.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "tensor/value.h"

namespace op_tools::replay {

struct ProcessState {
  std::optional<c10::ScalarType> default_dtype;
  std::optional<bool> deterministic;
  std::optional<std::string> float32_matmul_precision;  // highest, high, medium
  bool operator==(const ProcessState&) const = default;
};

struct Autocast {
  c10::DeviceType device;
  c10::ScalarType dtype;
};

// What replay needs of meta.json. Everything may be absent (a folder of ditorch's has none).
struct RecordedMeta {
  std::optional<Level> level;            // absent: a torch-level call, or not recorded
  std::string error;                     // what the captured call raised
  std::vector<std::string> unsupported;  // "args[2]: function (a callable)": inputs that are not in the file
  std::vector<c10::Device> input_devices;
  bool identity = false;
  std::optional<bool> grad_enabled;
  bool inference_mode = false;
  std::vector<Autocast> autocast;
  bool autocast_cache = true;
  std::optional<int> num_threads;
  ProcessState process;
};
// Throws Error that says what is wrong with the text.
RecordedMeta parse_meta(const std::string& text);

// Puts the process's part in force and keeps other calls out as long as they would disturb each
// other.
class StateGate {
 public:
  StateGate();   // remembers the process's state
  ~StateGate();  // and gives it back
  StateGate(const StateGate&) = delete;
  StateGate& operator=(const StateGate&) = delete;

  // Held for one call. `alone`: the call uses random generators.
  class Pass {
   public:
    Pass(StateGate& gate, const ProcessState& wanted, bool alone);

   private:
    std::shared_lock<std::shared_mutex> together_;
    std::unique_lock<std::shared_mutex> alone_;
  };

 private:
  void apply(const ProcessState& wanted);
  std::shared_mutex mutex_;
  ProcessState original_;
  ProcessState current_;
};

// The rest of the thread's part, for one forward. RAII.
class ThreadState {
 public:
  explicit ThreadState(const RecordedMeta& meta);
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

// The number of threads that operators use, for one call and its backward passes (sums depend on
// it). RAII.
class NumThreads {
 public:
  explicit NumThreads(std::optional<int> wanted);
  ~NumThreads();
  NumThreads(const NumThreads&) = delete;
  NumThreads& operator=(const NumThreads&) = delete;

 private:
  const int original_;
};

// Puts generators into the states of `rng` ({device: state}, of input.pth); a device of another
// kind than the CPU's gets its state when `device` is of that kind. Returns the kinds of devices
// whose generator has the recorded state now.
std::set<c10::DeviceType> restore_random_state(const Value& rng, c10::Device device);
// Seeds the CPU's generator and the device's.
void seed_generators(uint64_t seed, c10::Device device);

}  // namespace op_tools::replay
