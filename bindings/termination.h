// SIGTERM ends a program with a tool also where its interpreter does not run: while C++ hangs, Python never calls its
// handler, and without a tool the program would have ended at once.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "hooks/hook.h"

namespace op_tools::python {

// Flushed when the process ends so; it may be gone by then.
void flush_at_termination(const std::shared_ptr<Hook>& hook);

void init_termination(pybind11::module_& module);

}  // namespace op_tools::python
