// Options of OpObserve (base/options.h has those of all tools).
#pragma once

#include <cstdint>

#include "base/options.h"
#include "base/read_options.h"

namespace op_tools {

struct ObserveOptions : ToolOptions {
  ObserveOptions() : ToolOptions("OP_OBSERVE") {}

  Option<int64_t> detail{
      this,
      3,
      {"detail", "DIPU_DUMP_OP_ARGS",
       "0: the table only; 1: also a row per call with its name; 2: with arguments and results; 3: with "
       "statistics of their values"},
      {0, 3}};
  Option<bool> lines{
      this, false, {"lines", "", "rows are log lines, too", "bool", "on when DIPU_DUMP_OP_ARGS is set, else off"}};
  Option<bool> with_stack{
      this, true, {"with_stack", "", "note the program's line of each call; dynamic shapes are found by line"}};
  Option<int64_t> max_calls{
      this, kNoLimit, {"max_calls", "", "write at most N rows; the table goes on counting"}, at_least(1)};

  void resolve_all() override {
    ToolOptions::resolve_all();
    // A user of DIPU who sets the variable expects lines, even where an argument wins over its number.
    if (!lines.is_set()) lines = environment(detail.variable()).has_value();
  }
};
using ResolvedObserveOptions = Resolved<ObserveOptions>;

}  // namespace op_tools
