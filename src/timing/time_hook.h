// OpTimeMeasure: where the time goes. Forward and backward of each call, with the device of the call synchronised, or
// by events of the device, or as the time that issuing takes (TimeMode).
//
//   op_tools::OpTimeMeasure scope;
//   ...
//   std::string table = op_tools::time_table(scope.result().by_op, 20);
//
// Torch level: backward is the time of the autograd nodes that the call made. Aten level: operators of the backward
// engine are operators like others, in phase backward. Calls are timed on the program's own threads; nothing else runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "timing/time_options.h"
#include "timing/time_report.h"

namespace op_tools {

struct TimeResult {
  std::vector<TimeRow> by_op, by_shape, by_line, by_module;  // most self time first
  std::string root;                                          // the folder; empty when nothing was written
  uint64_t calls = 0, backward = 0;
  uint64_t in_graph = 0;    // calls left alone because their device was recording a graph
  uint64_t overflowed = 0;  // calls beyond max_calls: counted and in calls.csv, not in the trace
  // with memory: blocks that calls made and that are in use still, most bytes first
  struct Alive {
    std::string where;  // source line, else operator
    int64_t count = 0, bytes = 0;
  };
  std::vector<Alive> alive;
  // with_stack: time by stack, innermost line first, the operator in front
  struct Stack {
    std::vector<std::string> frames;
    double total_ms = 0, self_ms = 0;
  };
  std::vector<Stack> stacks;
};

struct TimeRun;

class OP_TOOLS_API TimeHook final : public Hook {
 public:
  using Options = TimeOptions;
  using Row = TimeRow;
  static constexpr ToolNames kNames{"OpTimeMeasure", "measure_op_time", "time"};

  explicit TimeHook(const ResolvedTimeOptions& options);
  ~TimeHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override { return {.nodes = true, .graphs = true, .progress = true}; }
  bool is_innermost() const override { return true; }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void step_begins(int64_t step) override;
  Value report() const override;
  std::string folder() const override;
  void add_coverage(Coverage& account) const override;
  void flush() override;  // writes the files again when there is more for them
  void scope_left() override;

  TimeResult result() const;

 private:
  std::shared_ptr<TimeRun> run_;  // shared with the graphs of calls whose backward may come
};

using OpTimeMeasure = ToolScope<TimeHook>;

}  // namespace op_tools
