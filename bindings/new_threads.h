// The threads that Python starts tell the core that they begin (hooks/current_chain.h).
#pragma once

#include <pybind11/pybind11.h>

namespace op_tools::python {

void init_thread_watch();

// run(thread, bootstrap) is called in place of bootstrap(thread) in new threads that follow no scope.
void run_unfollowed_threads_by(pybind11::object run);

}  // namespace op_tools::python
