#include "python_stack.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include "blackbox/stack_dump.h"
#include "hooks/stack_source.h"
#include "python_frames.h"

namespace op_tools::python {
namespace {

StackLines user_lines(size_t most) {
  StackLines lines;
  PythonFrames frame;
  for (int depth = 0; frame && depth < kMostFrames && lines.size() < most; ++depth, frame.back()) {
    if (frame.code().of_user) lines.push_back(&frame.line());
  }
  return lines;
}

// The text of faulthandler, without Python's lock: another thread may hold it for ever. Python exports the function and
// declares it for itself alone.
using DumpThreads = const char* (*)(int, PyInterpreterState*, PyThreadState*);

void dump_stacks(int descriptor) {
  static const auto dump = reinterpret_cast<DumpThreads>(dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
  if (dump && Py_IsInitialized()) dump(descriptor, nullptr, nullptr);
}

}  // namespace

void init_stack_source() {
  set_stack_source(&user_lines);
  set_stack_dump(&dump_stacks);
}

}  // namespace op_tools::python
