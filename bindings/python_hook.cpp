#include "python_hook.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/stl.h>
#include <torch/csrc/PyInterpreter.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "compat/python_object.h"
#include "error_text.h"
#include "hooks/hook.h"
#include "hooks/op_call.h"
#include "interrupts.h"
#include "python_values.h"
#include "tensor/dispatch_keys.h"
#include "tensor/plain_tensor.h"

namespace op_tools::python {
namespace {

// Python's view of a call. The call itself dies when its hooks are through: an object that Python still holds then
// raises.
class CallView {
 public:
  explicit CallView(OpCall& call) : call_(&call) {}
  void end() { call_ = nullptr; }
  OpCall& call() const {
    if (!call_) throw Error("this call is over: read its values inside before() or after()");
    return *call_;
  }

 private:
  OpCall* call_;
};

// An operator that failed in Python (a saved-tensor hook, a custom kernel) may pass here with Python's error set: the
// hook runs without it, and it is there again when the operator's exception goes on to the program.
using SavedPythonError = py::error_scope;

// A call's values for the hook's Python code. A tensor that no Python object stands for yet is shown as another tensor
// on the same memory: code that makes a Parameter or a subclass of it after the call refuses a tensor that has an
// object.
py::object shown(const Value& value) {
  return to_python(map_tensors(value, [](const at::Tensor& tensor) {
    // Subclasses and functorch's wrappers have objects, or forms, of their own.
    const bool simple = tensor.layout() == at::kStrided && !tensor.key_set().has_any(kWrapperTensorKeys);
    if (!simple || compat::has_python_object(*tensor.unsafeGetTensorImpl()->pyobj_slot(), getPyInterpreter()))
      return Value(tensor);
    at::Tensor other = same_memory(tensor);
    if (tensor.requires_grad()) other.set_requires_grad(true);
    return Value(std::move(other));
  }));
}

// A hook's own torch calls are not reported at the torch level either (InternalGuard sees to the dispatcher).
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(Tls::get_disabled_state()) { Tls::set_disabled_state(at::impl::ALL_DISABLED); }
  ~NoTorchFunction() { Tls::set_disabled_state(before_); }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;

 private:
  using Tls = at::impl::PythonTorchFunctionTLS;
  const at::impl::TorchFunctionDisabledState before_;
};

class PythonState final : public HookState {
 public:
  explicit PythonState(py::object object) : object(std::move(object)) {}
  ~PythonState() override {
    const py::gil_scoped_acquire gil;
    object = py::object();
  }
  py::object object;
};

// The view that Python has, while it may look.
struct View {
  explicit View(OpCall& call) : view(std::make_shared<CallView>(call)) {}
  ~View() { view->end(); }
  std::shared_ptr<CallView> view;
};

class PythonHook final : public Hook {
 public:
  // `has_before`, `has_after`: methods that the object's class defines itself; for the rest Python is not entered at
  // all.
  PythonHook(py::object object, bool has_before, bool has_after)
      : object_(std::move(object)), has_before_(has_before), has_after_(has_after) {
    name_ = py::str(py::type::handle_of(object_).attr("__name__")).cast<std::string>();
    gradients_ = object_.attr("gradients").cast<bool>();
  }
  ~PythonHook() override {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }

  std::string_view name() const override { return name_; }
  Wants wants() const override { return {.inputs_after = has_after_, .gradients = gradients_}; }

  std::unique_ptr<HookState> before(OpCall& call) override {
    if (!has_before_) return nullptr;
    const py::gil_scoped_acquire gil;
    const SavedPythonError saved;
    const NoTorchFunction quiet;
    const View view(call);
    return std::make_unique<PythonState>(object_.attr("before")(view.view));
  }

  void after(OpCall& call, HookState* state) override {
    if (!has_after_) return;
    const py::gil_scoped_acquire gil;
    const SavedPythonError saved;
    const NoTorchFunction quiet;
    const View view(call);
    object_.attr("after")(view.view, state ? static_cast<PythonState*>(state)->object : py::object(py::none()));
  }

 private:
  py::object object_;
  const bool has_before_, has_after_;
  std::string name_;
  bool gradients_ = false;
};

}  // namespace

Condition python_condition(py::object function) {
  // Freed with the GIL, by whichever thread releases it last.
  const std::shared_ptr<py::object> held(new py::object(std::move(function)), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held](OpCall& call) {
    const py::gil_scoped_acquire gil;
    const SavedPythonError saved;
    const NoTorchFunction quiet;
    const View view(call);
    try {
      return py::bool_((*held)(view.view)).cast<bool>();
    } catch (const py::error_already_set& error) {
      if (is_from_outside(error)) throw;
      throw std::runtime_error(text_of_error(error));
    }
  };
}

void bind_hook(py::module_& module) {
  py::class_<CallView, std::shared_ptr<CallView>>(
      module, "Call", "An operator call as a hook sees it; valid inside before() and after() only.")
      .def_property_readonly(
          "id", [](const CallView& view) { return view.call().id; },
          "Number of the call in the process; a backward call has that of its forward call.")
      .def_property_readonly(
          "name", [](const CallView& view) { return std::string(view.call().name); },
          "Name of the operator: torch.nn.functional.linear, aten::add.Tensor.")
      .def_property_readonly(
          "level", [](const CallView& view) { return std::string(to_string(view.call().level)); }, "torch or aten.")
      .def_property_readonly(
          "phase", [](const CallView& view) { return to_string(view.call().phase); }, "forward or backward.")
      .def_property_readonly(
          "args", [](const CallView& view) { return shown(view.call().args()); },
          "Positional arguments, the program's own tensors. Backward: the output gradients.")
      .def_property_readonly(
          "kwargs", [](const CallView& view) { return shown(view.call().kwargs()); }, "Keyword arguments, as args.")
      .def_property_readonly(
          "result", [](const CallView& view) { return shown(view.call().result()); },
          "The call's result; None before it ran, or if it raised. Backward: the input gradients.")
      .def_property_readonly(
          "step", [](const CallView& view) { return view.call().step; }, "The training step, from 0.")
      .def_property_readonly(
          "module", [](const CallView& view) { return view.call().module(); },
          "Module whose forward() made the call, as ResNet.layer3.0.conv1; empty: none, or not known. Ask in before().")
      .def_property_readonly(
          "error", [](const CallView& view) { return view.call().error; },
          "The operator's exception; empty if it returned.")
      .def("__repr__", [](const CallView& view) { return "<op_tools.Call " + std::string(view.call().name) + ">"; });
  py::class_<Hook, std::shared_ptr<Hook>>(module, "CoreHook")
      .def_property_readonly("name", &Hook::name)
      .def_property_readonly("sees_modules", [](const Hook& hook) { return hook.wants().modules; })
      .def("report",
           [](const Hook& hook) {
             py::object report = to_python(hook.report());
             throw_held();
             return report;
           })
      .def("flush", &Hook::flush, py::call_guard<py::gil_scoped_release>());
  module.def("python_hook", [](py::object object, bool has_before, bool has_after) -> std::shared_ptr<Hook> {
    return std::make_shared<PythonHook>(std::move(object), has_before, has_after);
  });
}

}  // namespace op_tools::python
