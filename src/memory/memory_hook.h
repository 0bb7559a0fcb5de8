// OpMemoryCheck: which place of the program allocated the memory that is in use, the memory that grows with the steps,
// the memory at the peak, and which operator writes outside of its memory (memory_table.h, tensor/cpu_memory.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "memory/memory_options.h"
#include "memory/memory_rows.h"

namespace op_tools {

struct MemoryResult {
  std::vector<MemoryRow> rows;  // most bytes alive first
  std::vector<OverwriteRow> overwrites;
  std::vector<BlockRow> blocks;  // of the first rows
  std::vector<DeviceMemoryRow> devices;
  int64_t steps = 0;
  std::string root;  // the folder; empty where nothing was written
};

class OP_TOOLS_API MemoryHook final : public Hook {
 public:
  using Options = MemoryOptions;
  using Row = MemoryRow;
  static std::vector<RowDescription> further_rows() {
    return {OverwriteRow::columns().describe(), BlockRow::columns().describe(), DeviceMemoryRow::columns().describe()};
  }
  static constexpr ToolNames kNames{"OpMemoryCheck", "memory_check", "memory"};

  explicit MemoryHook(const ResolvedMemoryOptions& options);
  ~MemoryHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override { return {.progress = true}; }
  bool is_innermost() const override { return true; }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void step_begins(int64_t step) override;
  void scope_left() override;  // the memory in use is that at this moment
  Value report() const override;
  std::string folder() const override;

  MemoryResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpMemoryCheck = ToolScope<MemoryHook>;

// Whether places are judged after this number of steps, while the program runs: 8, 16, 32 and so on, for it looks at
// every block. At the end functions have freed their variables.
OP_TOOLS_API bool is_memory_judged_after(int64_t steps);

// The calling thread's program runs an optimizer's step: the integrations and the Python package know.
OP_TOOLS_API void set_in_optimizer(bool running);

}  // namespace op_tools
