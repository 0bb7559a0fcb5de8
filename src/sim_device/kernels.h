// The operators: a boxed kernel runs whatever torch's CPU runs, on the host storages of the device's storages, in the
// stream's worker thread where the shapes of the results are known beforehand. Called by torch's dispatcher, from any
// thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace op_tools::sim_device {

// Each is called once, by load(). Their registrations stay for the life of the process.
void register_kernels();      // the boxed kernel, for every operator that the CPU has
void register_copies();       // empty tensors, copies, item(): the operators that a backend itself has to bring
void register_autocast();     // casts under torch.autocast("sim")
void register_collectives();  // torch.distributed on the host storages

void register_kernel(const char* op, c10::DispatchKey key, c10::KernelFunction kernel);  // "aten::add.Tensor"

template <class F>
void register_function(const char* op, F* function) {  // for the device's key
  register_kernel(op, c10::DispatchKey::PrivateUse1, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
}

struct DeviceNames {
  std::vector<std::string> reach;      // "aten::mm", ...
  std::vector<std::string> composite;  // "aten::linear", ...: made of others above the device
};
DeviceNames names_that_reach_the_device();

}  // namespace op_tools::sim_device
