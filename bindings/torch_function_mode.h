// The torch level: a torch-function mode in C++ that hands Python's torch calls to the chain of the calling thread. A
// single object for the process stands on a thread's mode stack while any torch-level scope is on in that thread. GIL
// held.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

namespace op_tools::python {

// The object that is the mode, the only one of its type: its __torch_function__ becomes ours for all but torch.compile,
// which finds that of its type. Once, when the package is imported.
void set_torch_function_mode(const pybind11::object& mode);

// A torch-level scope of this thread. The first of a thread puts the mode on its stack, the last takes it out, also
// from under modes that were pushed after it (torch.set_default_device, a user's own). In another thread its end does
// nothing: the stack has gone with the scope's thread.
class ModeOnStack {
 public:
  ModeOnStack();
  ~ModeOnStack();
  ModeOnStack(const ModeOnStack&) = delete;
  ModeOnStack& operator=(const ModeOnStack&) = delete;

 private:
  const std::shared_ptr<int> scopes_;  // of the thread: how many it has
};

// While an object lives, neither torch-function modes nor subclasses' __torch_function__ are asked on this thread.
class WithoutTorchFunction {
 public:
  WithoutTorchFunction();
  ~WithoutTorchFunction();
  WithoutTorchFunction(const WithoutTorchFunction&) = delete;
  WithoutTorchFunction& operator=(const WithoutTorchFunction&) = delete;

 private:
  const at::impl::TorchFunctionDisabledState before_;
};

// Calls torch's Python function that runs the autograd engine. If that raises, failures of the pass are reported, as
// it is where a program calls torch.autograd.grad.
pybind11::object run_engine(const pybind11::function& function, const pybind11::args& args,
                            const pybind11::kwargs& kwargs);

// What the calling thread's tools of the torch and of the aten level want of compiled graphs, as the option `compiled`
// says it; None: no tool of that level is on.
pybind11::tuple graph_choices();

// Runs a compiled graph, as a call of this name of the tools that take graphs. `operators`: the graph as Python code
// that runs its operators one by one; second runs of the call call it. `held`: the results of the graph's call before
// that the program still holds, None in the place of others.
pybind11::object run_graph(const std::string& name, const pybind11::object& compiled, const pybind11::object& operators,
                           const pybind11::tuple& args, const pybind11::list& held);

// The name under which a torch function is known to filters and files: torch.Tensor.add, torch.nn.functional.linear.
std::string function_name(pybind11::handle function);

}  // namespace op_tools::python
