// Does a call belong to a backward pass? At the torch level its phase says so; at the aten level the operators that the
// autograd engine calls are calls like others, and the engine's thread state says so.
#pragma once

#include "hooks/op_call.h"

namespace op_tools {

OP_TOOLS_API bool is_in_backward();  // this thread works for the engine
Phase phase_of(const OpCall& call);  // on the thread of the call

}  // namespace op_tools
