// The random numbers of an operator that runs on the CPU in a device's place come from the device's generator: a seeded
// program stays repeatable, and the CPU's own stream is left as it was.
//
// A generator whose state has the CPU's form is followed number by number: the program draws the numbers that it would
// have drawn on a device with the CPU's algorithms. Of any other generator a single number is drawn on the device,
// which moves it on, and seeds the CPU for this call: other numbers than the device's own, but given by its stream.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <mutex>

#include "base/export.h"

namespace op_tools {

// A state for a CPU generator that stands for the state of another device's: itself where the CPU takes it, else seeded
// by a hash of it.
OP_TOOLS_API at::Tensor cpu_state_from(const at::Tensor& device_state);

// For a run of an operator, on its thread; another thread's stream waits until this one is gone.
class OP_TOOLS_API RandomStream {
 public:
  // `device_generator` is read, and drawn from; c10::Error when that cannot be done. `as_default`: the operator takes
  // no generator, so the CPU's default generator stands in while this lives; another thread that draws from it
  // meanwhile gets numbers of this stream.
  RandomStream(at::Generator device_generator, bool as_default);
  ~RandomStream();  // the device's generator goes on from where the operator stopped
  RandomStream(const RandomStream&) = delete;
  RandomStream& operator=(const RandomStream&) = delete;

  const at::Generator& generator() const { return stream_; }  // on the CPU: for the operator
  // The run did not count: the device's generator is where it was (but for the number that was drawn of it, if any
  // was).
  void take_back() { same_kind_ = false; }

 private:
  std::unique_lock<std::recursive_timed_mutex> lock_;
  at::Generator device_, stream_;
  at::Tensor default_before_;  // undefined: the default generator was not touched
  bool same_kind_ = false;
};

}  // namespace op_tools
