// A call of an operator as the dispatcher hands it over: its arguments and returns on a stack of IValues. Used by the
// interceptor alone.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "hooks/argument_key.h"
#include "hooks/interceptor.h"
#include "hooks/op_call.h"
#include "tensor/value.h"

namespace op_tools::interceptor {

// The operator's results on top of the stack: None, a Value, or a Tuple of them.
Value returned_value(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Arguments on top of the stack before the call, returns on top of it after.
class DispatcherFrame final : public OperatorFrame {
 public:
  // `below`: the keys with which the call goes on. `detour` runs the operator in place of torch, unless an executor of
  // the aten level does.
  DispatcherFrame(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack, Detour* detour)
      : op_(op), below_(below), stack_(stack), first_(stack.size() - op.schema().arguments().size()), detour_(detour) {}

  void begin(OpCall& call) { call_ = &call; }

  Value args() override;
  Value kwargs() override;
  Value result() override;
  void visit_inputs(Visit visit) override;
  void visit_result(Visit visit) override;
  std::optional<c10::Device> named_device() override;
  bool add_arguments(ArgumentKey& key) override;
  bool add_result(ArgumentKey& key) override;
  void proceed() override;
  void prepare(OpCall& call) override;
  // After proceed(), for hooks that read a collective's results: waits for it where the program does as soon as the
  // call has returned. False: it does not.
  bool has_waited();
  std::shared_ptr<const OpRunner> runner() override { return runner_of(op_); }

  std::vector<c10::IValue> arguments() const override;
  bool copy_arguments() override;
  void set_returns(std::vector<c10::IValue> returns) override;
  void set_arguments(std::vector<c10::IValue> arguments) override;

 private:
  template <class VisitArgument>
  void each_argument(VisitArgument&& visit);
  void replace_top(std::vector<c10::IValue> values);

  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet below_;
  torch::jit::Stack& stack_;
  const size_t first_;  // of the arguments on the stack
  Detour* detour_;
  OpCall* call_ = nullptr;
  std::vector<c10::IValue> arguments_copy_;
  bool is_waited_for_ = false, waited_ = false;
  bool ran_ = false;  // the stack holds the operator's results
};

}  // namespace op_tools::interceptor
