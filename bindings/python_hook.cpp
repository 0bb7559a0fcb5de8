#include "python_hook.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "hooks/error.h"
#include "hooks/hook.h"
#include "hooks/op_call.h"
#include "python_values.h"

namespace op_tools::python {
namespace {

// What Python sees of a call. The call itself dies when its hooks are through: a kept object then says so.
class CallView {
 public:
  explicit CallView(OpCall& call) : call_(&call) {}
  void end() { call_ = nullptr; }
  OpCall& call() const {
    if (!call_) throw Error("this call is over: read what you need inside before() or after()");
    return *call_;
  }

 private:
  OpCall* call_;
};

// A hook's own torch calls are nobody's business at the torch level either (InternalGuard sees to the dispatcher).
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

class PythonHook final : public Hook {
 public:
  explicit PythonHook(py::object object) : object_(std::move(object)) {
    name_ = py::str(py::type::handle_of(object_).attr("__name__")).cast<std::string>();
    gradients_ = object_.attr("gradients").cast<bool>();
  }
  ~PythonHook() override {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }

  std::string_view name() const override { return name_; }
  Wants wants() const override { return {.gradients = gradients_}; }

  std::unique_ptr<HookState> before(OpCall& call) override {
    const py::gil_scoped_acquire gil;
    const NoTorchFunction quiet;
    const View view(call);
    return std::make_unique<PythonState>(object_.attr("before")(view.view));
  }

  void after(OpCall& call, HookState* state) override {
    const py::gil_scoped_acquire gil;
    const NoTorchFunction quiet;
    const View view(call);
    object_.attr("after")(view.view, state ? static_cast<PythonState*>(state)->object : py::object(py::none()));
  }

 private:
  struct View {
    explicit View(OpCall& call) : view(std::make_shared<CallView>(call)) {}
    ~View() { view->end(); }
    std::shared_ptr<CallView> view;
  };

  py::object object_;
  std::string name_;
  bool gradients_ = false;
};

}  // namespace

void bind_hook(py::module_& module) {
  py::class_<CallView, std::shared_ptr<CallView>>(module, "Call")
      .def_property_readonly("id", [](const CallView& view) { return view.call().id; })
      .def_property_readonly("name", [](const CallView& view) { return std::string(view.call().name); })
      .def_property_readonly("level", [](const CallView& view) { return std::string(to_string(view.call().level)); })
      .def_property_readonly(
          "phase", [](const CallView& view) { return view.call().phase == Phase::kForward ? "forward" : "backward"; })
      .def_property_readonly("args", [](const CallView& view) { return to_python(view.call().args()); })
      .def_property_readonly("kwargs", [](const CallView& view) { return to_python(view.call().kwargs()); })
      .def_property_readonly("result", [](const CallView& view) { return to_python(view.call().result()); })
      .def_property_readonly("error", [](const CallView& view) { return view.call().error; })
      .def("__repr__", [](const CallView& view) { return "<op_tools.Call " + std::string(view.call().name) + ">"; });
  py::class_<Hook, std::shared_ptr<Hook>>(module, "CoreHook").def_property_readonly("name", &Hook::name);
  module.def("python_hook", [](py::object object) -> std::shared_ptr<Hook> {
    return std::make_shared<PythonHook>(std::move(object));
  });
}

}  // namespace op_tools::python
