#include "mode_off_stack.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/PyInterpreter.h>

#include <memory>
#include <utility>

namespace op_tools::python {
namespace {

namespace py = pybind11;
using ModeStack = at::impl::PythonTorchFunctionTLS;

// In C++ because nothing can arrive between the pop and the block that puts the mode back.
class ModeOffStack {
 public:
  py::object enter() {
    mode_ = ModeStack::pop_stack();
    return py::reinterpret_borrow<py::object>(mode_->ptr(getPyInterpreter()));
  }
  void exit() {
    if (mode_) ModeStack::push_onto_stack(std::move(mode_));
    mode_.reset();
  }

 private:
  std::shared_ptr<c10::SafePyObject> mode_;
};

}  // namespace

void bind_mode_off_stack(py::module_& module) {
  py::class_<ModeOffStack>(module, "ModeOffStack")
      .def(py::init<>())
      .def("__enter__", &ModeOffStack::enter)
      .def("__exit__", [](ModeOffStack& self, const py::args&) { self.exit(); });
}

}  // namespace op_tools::python
