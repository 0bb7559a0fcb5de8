// The threads that Python starts, which tell the core that they begin (hooks/current_chain.h).
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

bool watch_threads();  // Host::watch_threads()

// A thread or a process of Python's that loads data, by the function that it is to run: it computes nothing of the
// model.
bool is_of_data_loader(pybind11::handle started);

}  // namespace op_tools::python
