#include "hooks/dispatcher_frame.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "hooks/op_table.h"
#include "tensor/cpu_kernels.h"
#include "tensor/internal_guard.h"
#include "tensor/ivalue.h"

namespace op_tools::interceptor {

using torch::jit::Stack;

Value returned_value(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& returns = op.schema().returns();
  const size_t first = stack.size() - returns.size();
  if (returns.empty()) return {};
  if (returns.size() == 1) return to_value(stack[first], *returns[0].real_type());
  Values values;
  values.reserve(returns.size());
  for (size_t i = 0; i < returns.size(); ++i) values.push_back(to_value(stack[first + i], *returns[i].real_type()));
  return make_tuple(std::move(values));
}

namespace {

void visit_list(const c10::IValue& value, Frame::Visit visit) {
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

// From this place on the stack.
void visit_tensors(const Stack& stack, size_t first, Frame::Visit visit) {
  for (const c10::IValue *value = stack.data() + first, *end = stack.data() + stack.size(); value != end; ++value) {
    if (value->isTensor()) {
      if (const at::Tensor& tensor = value->toTensor(); tensor.defined()) visit(tensor);
    } else if (value->isList()) {
      visit_list(*value, visit);
    }
  }
}

// Holding on to it is enough to have the argument of the call after the call; and its tensors are those of its Value,
// which a tensor that stands for a number is not.
bool is_unchanged_by_call(const c10::IValue& value) {
  if (value.isTensor())
    return !value.toTensor().defined() || !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
  return value.isNone() || value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble() ||
         value.isString() || value.isDevice() || value.isTensorList() || value.isOptionalTensorList() ||
         value.isIntList() || value.isDoubleList() || value.isBoolList();
}

class DispatcherRunner final : public OpRunner {
 public:
  explicit DispatcherRunner(const c10::OperatorHandle& op) : op_(op), kernel_(op) {}

  Value run(const Value& args, const Value& kwargs) const override {
    const Values& positional = *sequence_items(args);
    Stack stack;
    size_t next = 0;
    for (const c10::Argument& argument : op_.schema().arguments()) {
      const Value* value = argument.kwarg_only()      ? find_key(kwargs, argument.name())
                           : next < positional.size() ? &positional[next++]
                                                      : nullptr;
      std::string why = "argument '" + argument.name() + "' is missing";
      c10::IValue bound;
      if (!value || !to_ivalue(*value, argument, &bound, &why, Binding::kDispatcher)) {
        throw Error(op_.operator_name().name + " cannot be run again: " + why);
      }
      stack.push_back(std::move(bound));
    }
    const c10::impl::ExcludeDispatchKeyGuard unseen(kInterceptorKey);
    kernel_.call(op_, &stack);
    return returned_value(op_, stack);
  }

 private:
  const c10::OperatorHandle op_;
  const CpuKernel kernel_;
};

[[noreturn]] void refuse_consumed() {
  throw Error("the operator has consumed its arguments: a hook that reads them in after() must want inputs_after");
}

}  // namespace

std::shared_ptr<const OpRunner> runner_of(const c10::OperatorHandle& op) {
  return std::make_shared<DispatcherRunner>(op);
}

template <class VisitArgument>
void DispatcherFrame::each_argument(VisitArgument&& visit) {
  const auto& arguments = op_.schema().arguments();
  if (ran_ && arguments_copy_.size() != arguments.size()) refuse_consumed();
  for (size_t i = 0; i < arguments.size(); ++i) visit(arguments[i], ran_ ? arguments_copy_[i] : stack_[first_ + i]);
}

Value DispatcherFrame::args() {
  Values values;
  each_argument([&](const c10::Argument& argument, c10::IValue& value) {
    if (!argument.kwarg_only()) values.push_back(to_value(value, *argument.real_type()));
  });
  return make_tuple(std::move(values));
}

Value DispatcherFrame::kwargs() {
  std::vector<std::pair<Value, Value>> items;
  each_argument([&](const c10::Argument& argument, c10::IValue& value) {
    if (argument.kwarg_only()) items.emplace_back(argument.name(), to_value(value, *argument.real_type()));
  });
  return make_dict(std::move(items));
}

Value DispatcherFrame::result() {
  return returned_value(op_, stack_);
}

void DispatcherFrame::visit_inputs(Visit visit) {
  if (ran_) refuse_consumed();
  // Positional first, then keyword-only: the schema's order is that of for_each_tensor over (args, kwargs).
  visit_tensors(stack_, first_, visit);
}

void DispatcherFrame::visit_result(Visit visit) {
  visit_tensors(stack_, stack_.size() - op_.schema().returns().size(), visit);
}

std::optional<c10::Device> DispatcherFrame::named_device() {
  if (ran_) refuse_consumed();
  std::optional<c10::Device> named;
  for (size_t i = first_; i < stack_.size(); ++i) {
    if (stack_[i].isDevice()) named = stack_[i].toDevice();
  }
  return named;
}

bool DispatcherFrame::add_arguments(ArgumentKey& key) {
  key.add(ArgumentKey::Part::kInt, OpTable::changes());  // an operator of this name may have another schema then
  return !ran_ && std::all_of(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end(),
                              [&](const c10::IValue& value) { return key.add_ivalue(value); });
}

bool DispatcherFrame::add_result(ArgumentKey& key) {
  const auto returns = static_cast<std::ptrdiff_t>(op_.schema().returns().size());
  return std::all_of(stack_.end() - returns, stack_.end(),
                     [&](const c10::IValue& value) { return key.add_ivalue(value); });
}

void DispatcherFrame::proceed() {
  if (Detour* const detour = std::exchange(detour_, nullptr)) return detour->execute(*call_);
  ran_ = true;
  op_.redispatchBoxed(below_, &stack_);
}

void DispatcherFrame::prepare(OpCall& /*call*/) {
  const auto& returns = op_.schema().returns();
  if (returns.empty() || returns.back().type()->kind() != c10::TypeKind::ClassType) return;
  const auto place = op_.schema().argumentIndexWithName("async_op");
  const c10::IValue* const value = place ? &stack_[first_ + static_cast<size_t>(*place)] : nullptr;
  is_waited_for_ = value && value->isBool() && !value->toBool();
}

bool DispatcherFrame::has_waited() {
  if (waited_ || !is_waited_for_ || !stack_.back().isCustomClass()) return waited_;
  try {
    waited_ = stack_.back().toCustomClass<c10d::Work>()->wait();
  } catch (const std::exception&) {  // the program waits next, and meets it there
  }
  return waited_;
}

std::vector<c10::IValue> DispatcherFrame::arguments() const {
  if (ran_) refuse_consumed();
  return {stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end()};
}

bool DispatcherFrame::copy_arguments() {
  if (ran_) refuse_consumed();
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(first_);
  if (!std::all_of(begin, stack_.end(), is_unchanged_by_call)) return false;
  arguments_copy_.assign(begin, stack_.end());
  return true;
}

void DispatcherFrame::set_returns(std::vector<c10::IValue> returns) {
  ran_ = true;
  replace_top(std::move(returns));
}

void DispatcherFrame::set_arguments(std::vector<c10::IValue> arguments) {
  ran_ = false;
  replace_top(std::move(arguments));
}

void DispatcherFrame::replace_top(std::vector<c10::IValue> values) {
  stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
  std::move(values.begin(), values.end(), std::back_inserter(stack_));
}

}  // namespace op_tools::interceptor
