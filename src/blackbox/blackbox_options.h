// Options of OpBlackBox (base/options.h has those of all tools).
#pragma once

#include <cstdint>
#include <string>

#include "base/export.h"
#include "base/options.h"

namespace op_tools {

struct OP_TOOLS_API BlackBoxOptions : ToolOptions {
  BlackBoxOptions() : ToolOptions("OP_BLACKBOX") {}

  Option<int64_t> calls{
      this, 4096, {"calls", "OP_BLACKBOX_CALLS", "the last N calls of each thread are in the file"}, {16, 1 << 20}};
  Option<bool> with_stack{this, true, {"with_stack", "", "note the program's line of each call"}};
  Option<bool> with_modules{this, true, {"with_modules", "", "note the module of each call"}};
  Option<double> stall{
      this,
      0,
      {"stall", "OP_BLACKBOX_STALL",
       "write the stacks of all threads when no call has begun or ended for N seconds; 0: never", "float", "0"}};
  Option<int64_t> inputs{
      this,
      0,
      {"inputs", "", "keep the inputs of the last N calls in the file, so that they can be run again; 0: of none"},
      {0, 1 << 16}};
  Option<std::string> inputs_ops{
      this, "", {"inputs_ops", "", "keep inputs of these operators only: regular expressions", "names", "all"}};
  Option<int64_t> inputs_mb{
      this, 1, {"inputs_mb", "", "a call whose inputs are more than N MB is described only"}, {1, 1024}};
  Option<int64_t> marks{this,
                        16,
                        {"marks", "", "on a device: look after each N calls of a stream how far it has come; 0: never"},
                        {0, 1 << 20}};

  void resolve_all() override;
};
using ResolvedBlackBoxOptions = Resolved<BlackBoxOptions>;

}  // namespace op_tools
