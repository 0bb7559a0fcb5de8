// OpAutoCompare: are the device's results right? Each admitted call is run again on the CPU in its own dtypes and,
// where that decides, in float64, from a single copy of its inputs; outputs, changed inputs and, at the torch level,
// input gradients are judged (judge.h), written down (compare_report.h) and, where they are wrong, saved.
//
// Inputs are copied before the call, results after it, in the program's thread; judging follows at once, or on other
// threads (options.async). The program's results, gradients and random numbers are the same as without it. Calls on
// the CPU are judged against float64.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/export.h"
#include "compare/compare_options.h"
#include "compare/compare_report.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"

namespace op_tools {

// Uses gradients without a copy (Wants): it judges or copies them before after() returns.
class OP_TOOLS_API CompareHook final : public Hook {
 public:
  using Options = CompareOptions;
  using Row = CompareResult::Op;
  static constexpr ToolNames kNames{"OpAutoCompare", "autocompare", "autocompare"};

  explicit CompareHook(const ResolvedCompareOptions& options);
  ~CompareHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override;
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;
  std::string folder() const override;
  // Makes the folder of the run's files now, for files of others beside them; empty: it cannot be made.
  std::string claim_folder();
  void add_coverage(Coverage& account) const override;

  CompareResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpAutoCompare = ToolScope<CompareHook>;

}  // namespace op_tools
