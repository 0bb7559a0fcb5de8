// Tells the core where the user's Python program stands (hooks/stack_source.h).
#pragma once

namespace op_tools::python {

void init_stack_source();

}  // namespace op_tools::python
