// The threads that Python starts tell the core that they begin (hooks/current_chain.h).
#pragma once

namespace op_tools::python {

void init_thread_watch();

}  // namespace op_tools::python
