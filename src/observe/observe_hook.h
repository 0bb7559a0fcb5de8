// OpObserve: the calls of a program. Each admitted call is counted by operator, shapes and dtypes, and written as a
// row: its arguments and results described, with statistics of their values (statistics.h).
//
// Statistics of tensors on the CPU are there at once; those of a device are computed on it and read once per step (and
// every kMaxWaiting calls), all rows in the order of the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "observe/observe_options.h"
#include "observe/shape_statistics.h"

namespace op_tools {

struct ObserveResult {
  std::vector<CallShapes> rows;     // most calls first
  std::vector<DynamicDim> varying;  // dynamic shapes
  uint64_t calls = 0;
  uint64_t written = 0;     // rows in the file
  uint64_t left_out = 0;    // calls of further kinds than rows has room for
  uint64_t read_backs = 0;  // transfers of statistics from a device
  std::string root;         // the folder; empty when there was nothing to write
};

class OP_TOOLS_API ObserveHook final : public Hook {
 public:
  using Options = ObserveOptions;
  using Row = CallShapes;
  static std::vector<RowDescription> further_rows() {
    return {tensor_shape_columns().describe(), DynamicDim::columns().describe()};
  }
  static constexpr ToolNames kNames{"OpObserve", "dump_op_args", "observe"};

  static constexpr size_t kMaxWaiting = 10'000;

  explicit ObserveHook(const ResolvedObserveOptions& options);
  ~ObserveHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override;
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void step_begins(int64_t step) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;
  std::string folder() const override;
  void add_coverage(Coverage& account) const override;

  ObserveResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpObserve = ToolScope<ObserveHook>;

}  // namespace op_tools
