// The parts that torch asks of a backend besides memory and operators: the current device, streams, events, generators.
// Called by torch through the device guard and the hooks. The current device and stream belong to a thread.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "sim_device/sim_device.h"

namespace op_tools::sim_device {

void register_device();  // guard, hooks, and the name "sim"

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);  // an error when there is no such device

// A generator of the device is a CPU generator inside: the same seed gives the same numbers as on the CPU.
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator cpu_generator_in(const at::Generator& generator);

// An operator without a generator argument draws from the CPU's: while an object lives, that has the state of the
// device's.
class DrawsAsTheDevice {
 public:
  explicit DrawsAsTheDevice(bool draws);  // false: nothing happens
  ~DrawsAsTheDevice();
  DrawsAsTheDevice(const DrawsAsTheDevice&) = delete;
  DrawsAsTheDevice& operator=(const DrawsAsTheDevice&) = delete;

 private:
  at::Generator cpu_, device_;
  at::Tensor before_;
};

void count_calls(Statistics& all);  // adds the kernels' counts

}  // namespace op_tools::sim_device
