// Another name for the accelerator's device type in Python: "cuda" for a program that was written for CUDA.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

// device_names_start(names, backend, shown, types, functions), device_names_stop(). From start() to stop():
// - `types` (torch.device, torch.Generator, ...) and `functions` (torch.empty, Tensor.to, ...: functions and methods
// that
//   are written in C and take keywords) take any of `names` ("cuda", "cuda:1") for `backend` ("sim:1");
// - Tensor.is_cuda says True of a tensor of the accelerator, if "cuda" is among `names`;
// - where `shown` is not empty, type, str() and repr() of a torch.device of the accelerator say `shown`.
// It is done in the slots of the C types and functions: they stay the same objects, and no other call becomes slower.
// Called with the GIL. start() twice is an Error, and so is a function that cannot be changed: nothing has changed
// then.
void bind_device_names(pybind11::module_& module);

}  // namespace op_tools::python
