// Options of OpMemoryCheck (base/options.h has those of all tools).
#pragma once

#include <cstdint>
#include <vector>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

struct OP_TOOLS_API MemoryOptions : ToolOptions {
  MemoryOptions() : ToolOptions("OP_MEMORY_CHECK") {}

  Option<bool> cpu{
      this,
      false,
      {"cpu", "", "report memory of the CPU, too", "bool", "on where the program uses no other device, else off"}};
  Option<bool> with_stack{this, true, {"with_stack", "", "note the program's line of each allocation"}};
  Option<bool> with_modules{this, true, {"with_modules", "", "note the module of each allocation"}};
  Option<bool> backtrace{
      this,
      false,
      {"backtrace", "DIPU_MEM_CHECK_ENABLE_BACKTRACE", "note the Python and the C++ stack of each allocation (slow)"}};
  Option<bool> guard{this,
                     false,
                     {"guard", "",
                      "put a known pattern before and behind each allocation of the CPU and the simulated device, and "
                      "look at it after each operator"}};
  Option<bool> files{this, true, {"files", "", "write memory.csv, memory.jsonl and snapshot.pickle"}};

  void resolve_all() override;
  std::vector<Variable> further_variables() const override;
};
using ResolvedMemoryOptions = Resolved<MemoryOptions>;

}  // namespace op_tools
