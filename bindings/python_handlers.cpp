#include "python_handlers.h"

#include <torch/csrc/PyInterpreter.h>

#include "compat/interpreter_table.h"
#include "hooks/interceptor.h"

namespace op_tools::python {
namespace {

// Stands before torch's table: the only place between the dispatcher, which excludes the keys, and the handler.
class Handlers final : public compat::InterpreterTable<> {
 public:
  using InterpreterTable::InterpreterTable;

  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    const interceptor::InsidePythonHandler inside;
    InterpreterTable::dispatch(op, stack);
  }
};

}  // namespace

void see_inside_python_handlers() {
  c10::impl::PyInterpreter* const torch = getPyInterpreter();
  torch->vtable_ = new Handlers(*torch->vtable_);  // for the life of the process, as torch's own
}

}  // namespace op_tools::python
