// Torch gives calls of tensor subclasses and under dispatch modes to Python, and excludes the interceptor's key while
// Python handles them, together with all keys above Python's. The calls of such a handler (the local operators of a
// DTensor, all operators of a program under a mode) would be unseen.
#pragma once

namespace op_tools::python {

// From now on the interceptor's key is on while Python handles a call that the interceptor let pass. Once per process,
// with the GIL.
void see_inside_python_handlers();

}  // namespace op_tools::python
