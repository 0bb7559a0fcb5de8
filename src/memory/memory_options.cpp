#include "memory/memory_options.h"

namespace op_tools {

void MemoryOptions::resolve_all() {
  ToolOptions::resolve_all();
  // Memory that another thread allocates is as much in use.
  if (!all_threads.is_set()) all_threads = level == Level::kAten;
}

std::vector<Variable> MemoryOptions::further_variables() const {
  return {{"DIPU_MEM_CHECK", "starts OpMemoryCheck where op-tools run, or the variables of op-tools env, start tools"}};
}

}  // namespace op_tools
