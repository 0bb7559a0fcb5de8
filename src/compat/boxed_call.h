#pragma once

// A boxed call whose stack is the only owner of its arguments.
// Gap: up to torch 2.11 a boxed kernel that returns several references (aminmax.out: std::tuple<Tensor&, Tensor&>) puts
// them back on the stack after it destroyed their owners there; a tensor that nobody else holds is gone by then, and
// the heap is written to. Until such a call is over its arguments have a second owner. Any thread.

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "compat/defined.h"

namespace c10::impl {
template <typename Type>
struct decay_if_tuple;  // with which torch copies the references
}

namespace op_tools::compat {

// `call` runs the operator on the stack.
template <typename Call>
void call_boxed(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const Call& call) {
  torch::jit::Stack owners;
  if constexpr (!Defined<c10::impl::decay_if_tuple<int>>) {
    if (op.schema().returns().size() > 1) owners = stack;
  }
  call();
}

}  // namespace op_tools::compat
