#include "called_modules.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "hooks/backward_source.h"
#include "hooks/chain.h"
#include "hooks/current_chain.h"
#include "hooks/op_call.h"
#include "python_values.h"
#include "tensor/internal_guard.h"

namespace op_tools::python {
namespace {

// A call of a module. Its own parameters and buffers are inputs, so that their gradients are those of this call.
class ModuleFrame final : public Frame {
 public:
  ModuleFrame(const py::function& function, py::tuple args, py::dict kwargs, const py::dict& own, const Chain& chain)
      : function_(function), args_(std::move(args)), kwargs_(std::move(kwargs)), inputs_(kwargs_), backward_(chain) {
    if (own.empty()) return;
    inputs_ = py::dict();
    for (const auto& [name, value] : kwargs_) inputs_[name] = value;
    for (const auto& [name, value] : own) inputs_[py::str("self.{}").format(name)] = value;
  }

  Value args() override { return to_value(args_); }
  Value kwargs() override { return to_value(inputs_); }
  Value result() override {
    if (!result_value_) result_value_ = result_ ? to_value(result_) : Value();
    return *result_value_;
  }
  void visit_inputs(Visit visit) override {
    visit_tensors(args_, visit);
    visit_tensors(inputs_, visit);
  }
  void visit_result(Visit visit) override {
    if (result_) visit_tensors(result_, visit);
  }

  void prepare(OpCall& call) override { backward_.prepare(call); }
  void proceed() override { result_ = function_(*args_, **kwargs_); }
  void conclude(OpCall& call) override { backward_.conclude(call); }
  bool is_identity() override { return backward_.is_identity(); }

  py::object take_result() { return std::move(result_); }

 private:
  const py::function& function_;
  const py::tuple args_;
  const py::dict kwargs_;
  py::dict inputs_;  // kwargs_, and the module's own tensors
  BackwardSource backward_;
  py::object result_;
  std::optional<Value> result_value_;
};

py::object call_module(const std::string& name, const py::function& function, const py::tuple& args,
                       const py::dict& kwargs, const py::dict& own) {
  const CurrentChain current(Level::kTorch);
  const Chain* const chain = current.get();
  const uint32_t mask = chain ? chain->mask_for(name) : 0;
  if (mask == 0) return function(*args, **kwargs);
  ModuleFrame frame(function, args, kwargs, own, *chain);
  const GuardedState thread;
  OpCall call(next_call_id(), Level::kTorch, Phase::kForward, name, frame, thread);
  chain->run(mask, call);
  return frame.take_result();
}

}  // namespace

void bind_called_modules(py::module_& module) {
  module.def("call_module", &call_module);
}

}  // namespace op_tools::python
