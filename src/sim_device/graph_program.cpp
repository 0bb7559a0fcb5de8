#include "sim_device/graph_program.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <utility>

namespace op_tools::sim_device {
namespace {

// As torch does for a program in Python: a size where a tensor is taken (x * x.shape[0]), or a float.
c10::IValue as_type(c10::IValue value, const c10::TypePtr& type) {
  if (!type || !value.isScalar()) return value;
  const c10::TypeKind kind = type->kind();
  if (kind == c10::TypeKind::TensorType) return at::native::wrapped_scalar_tensor(value.toScalar());
  if (kind == c10::TypeKind::FloatType) return value.toScalar().toDouble();
  return value;
}

}  // namespace

ProgramArgument ProgramArgument::of_constant(c10::IValue value) {
  ProgramArgument argument;
  argument.constant_ = std::move(value);
  return argument;
}

ProgramArgument ProgramArgument::of_register(size_t number, c10::TypePtr type) {
  ProgramArgument argument;
  argument.kind_ = Kind::kRegister;
  argument.number_ = number;
  argument.type_ = std::move(type);
  return argument;
}

ProgramArgument ProgramArgument::of_list(std::vector<ProgramArgument> items, c10::TypePtr element_type) {
  ProgramArgument argument;
  argument.kind_ = Kind::kList;
  argument.items_ = std::move(items);
  argument.type_ = std::move(element_type);
  return argument;
}

c10::IValue ProgramArgument::value_in(const std::vector<c10::IValue>& registers) const {
  if (kind_ == Kind::kConstant) return constant_;
  if (kind_ == Kind::kRegister) return as_type(registers.at(number_), type_);
  c10::impl::GenericList list(type_);
  list.reserve(items_.size());
  for (const ProgramArgument& item : items_) list.push_back(item.value_in(registers));
  return list;
}

GraphProgram::GraphProgram(size_t inputs, size_t registers, std::vector<ProgramCall> calls,
                           std::vector<ProgramArgument> outputs)
    : inputs_(inputs), registers_(registers), calls_(std::move(calls)), outputs_(std::move(outputs)) {}

std::vector<c10::IValue> GraphProgram::run(std::vector<c10::IValue> inputs) const {
  TORCH_CHECK(inputs.size() == inputs_, "sim_graph: the program takes ", inputs_, " inputs, not ", inputs.size());
  std::vector<c10::IValue> registers = std::move(inputs);
  registers.resize(registers_);
  torch::jit::Stack stack;
  for (const ProgramCall& call : calls_) {
    stack.clear();
    for (const ProgramArgument& argument : call.arguments) stack.push_back(argument.value_in(registers));
    call.operation(stack);
    TORCH_CHECK(stack.size() == call.results.size(), "sim_graph: an operator gave ", stack.size(), " results, not ",
                call.results.size());
    for (size_t i = 0; i < stack.size(); ++i) registers.at(call.results[i]) = std::move(stack[i]);
    for (const size_t number : call.dead) registers.at(number) = {};
  }
  std::vector<c10::IValue> outputs;
  outputs.reserve(outputs_.size());
  for (const ProgramArgument& output : outputs_) outputs.push_back(output.value_in(registers));
  return outputs;
}

}  // namespace op_tools::sim_device
