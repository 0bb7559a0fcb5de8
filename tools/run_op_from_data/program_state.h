// The state of the captured program that changes what an operator computes: put in force for a replayed call, taken
// back after it.
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

#include "calls/call_meta.h"
#include "tensor/value.h"

namespace op_tools::replay {

// Puts the process's part in force and keeps other calls out as long as they would disturb each
// other.
class StateGate {
 public:
  StateGate();   // remembers the process's state
  ~StateGate();  // and gives it back
  StateGate(const StateGate&) = delete;
  StateGate& operator=(const StateGate&) = delete;

  // Held for a single call. `alone`: the call uses random generators.
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

// The rest of the thread's part, for a single forward. RAII.
class ThreadState {
 public:
  explicit ThreadState(const ProgramState& state);
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

// The number of threads that operators use, for a call and its backward passes (sums depend on
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
