// A compiled graph of the compiler op_tools/sim_graph: calls of operators on registers, run in their order by a single
// call. Each operator runs where its tensors are; on this device it goes to the queue of the current stream. Immutable:
// any thread may run it, several at once.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools::sim_device {

// What an operator takes: a constant, the value of a register, or a list with values of registers in it.
struct OP_TOOLS_API ProgramArgument {
  static ProgramArgument of_constant(c10::IValue value);
  static ProgramArgument of_register(size_t number, c10::TypePtr type);
  static ProgramArgument of_list(std::vector<ProgramArgument> items, c10::TypePtr element_type);

  c10::IValue value_in(const std::vector<c10::IValue>& registers) const;

 private:
  enum class Kind : uint8_t { kConstant, kRegister, kList };
  Kind kind_ = Kind::kConstant;
  c10::IValue constant_;
  size_t number_ = 0;
  c10::TypePtr type_;  // that the operator takes; of a list: its elements'
  std::vector<ProgramArgument> items_;
};

struct ProgramCall {
  mutable torch::jit::Operation operation;  // takes its arguments from a stack and puts its results there
  std::vector<ProgramArgument> arguments;   // of its schema, all of them
  std::vector<size_t> results;              // registers, one for each result
  std::vector<size_t> dead;                 // registers that no later call reads: freed behind it
};

class OP_TOOLS_API GraphProgram {
 public:
  // Registers 0 to `inputs` - 1 are the inputs. `outputs`: constants and registers.
  GraphProgram(size_t inputs, size_t registers, std::vector<ProgramCall> calls, std::vector<ProgramArgument> outputs);

  // Throws what an operator throws, and c10::Error where the number of inputs is another.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

 private:
  const size_t inputs_, registers_;
  const std::vector<ProgramCall> calls_;
  const std::vector<ProgramArgument> outputs_;
};

}  // namespace op_tools::sim_device
