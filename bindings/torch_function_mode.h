// The torch level: a torch-function mode in C++ that hands Python's torch calls to the chain of the calling thread. One
// object for the process stands on a thread's mode stack while any torch-level scope is on in that thread. GIL held.
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

// Makes the mode's type; once, when the module is loaded.
void init_torch_function_mode();

// Counts the torch-level scopes of this thread: the first puts the mode on the stack, the last takes it out, also from
// under modes that were pushed after it (torch.set_default_device, a user's own).
void push_mode();
void pop_mode();

// The name under which a torch function is known to filters and files: torch.Tensor.add, torch.nn.functional.linear.
std::string function_name(pybind11::handle function);

}  // namespace op_tools::python
