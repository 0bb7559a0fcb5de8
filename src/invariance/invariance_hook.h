// OpInvariance: has a result the same bits when its call is run again? Each sampled call runs again where the program
// ran it, in relations that must keep its bits (call_invariance.h): on the same inputs, in other memory, on another
// stream or with other threads, with other rows in the batch, with its rows at other positions. A result with other
// bits is a finding, whether or not it is right.
//
// Inputs are copied before the call, the runs follow it in the program's thread. The program's results, gradients and
// random numbers are the same as without it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "invariance/invariance_options.h"
#include "invariance/invariance_result.h"

namespace op_tools {

// Uses gradients without a copy (Wants): it compares them before after() returns.
class OP_TOOLS_API InvarianceHook final : public Hook {
 public:
  using Options = InvarianceOptions;
  using Row = InvarianceResult::Finding;
  static constexpr ToolNames kNames{"OpInvariance", "invariance", "invariance"};
  static std::vector<RowDescription> further_rows() { return {InvarianceResult::Op::columns().describe()}; }

  explicit InvarianceHook(const ResolvedInvarianceOptions& options);
  ~InvarianceHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override;
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;
  std::string folder() const override;
  void add_coverage(Coverage& account) const override;

  InvarianceResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpInvariance = ToolScope<InvarianceHook>;

}  // namespace op_tools
