// For tests in the program that has the simulated device.
#pragma once

#include <ATen/core/Tensor.h>

#include "sim_device/sim_device.h"

namespace op_tools::test {

inline at::Tensor on_device(const at::Tensor& tensor) {
  sim_device::load();
  return tensor.to(c10::Device(c10::kPrivateUse1, 0));
}

}  // namespace op_tools::test
