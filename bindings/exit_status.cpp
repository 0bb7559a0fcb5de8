#include "exit_status.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

#include "base/log.h"

namespace op_tools::python {
namespace {

std::atomic<int> wanted = 0;

// Among the last steps of exit(), which cannot be called from here with another status.
void end_as_wanted(int status, void* /*unused*/) {
  if (status != 0 || wanted == 0) return;
  std::fflush(nullptr);  // exit() would do it after this
  ::_exit(wanted);
}

// The sooner it is called, the later it is its turn: files that tools write to the end are closed before.
void watch_exit_status() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (::on_exit(end_as_wanted, nullptr) != 0) log::warn("the exit status will not tell the verdict of the tools");
  });
}

}  // namespace

void init_exit_status(pybind11::module_& module) {
  module.def("watch_exit_status", &watch_exit_status);
  module.def("want_exit_status", [](int status) { wanted = status; });
}

}  // namespace op_tools::python
