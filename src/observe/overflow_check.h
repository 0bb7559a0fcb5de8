// OpOverflowCheck: NaN and infinities where there were none. Each call is asked whether its inputs and its outputs hold
// such values. A call with sound inputs and unsound outputs is a *producer*; a call that was given them is a
// *propagator*.
//
// On the CPU the answers come at once. On a device they are computed there and read for a window of calls together; the
// calls of the window are then judged in their order, so the producer is named exactly, only later.
//
// A producer's call is saved for run_op_from_data, with its inputs as they were before it (calls/retained_call.h): on a
// device the window holds on to them, and tensors about to be written are copied there first.
//
// An infinity can be intended: attention masks are full of -inf. Outputs of the operators in `allow` that hold -inf and
// nothing else are sound, and so are results made of them as long as they hold -inf only.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "observe/overflow_options.h"
#include "observe/overflow_result.h"

namespace op_tools {

class OP_TOOLS_API OverflowHook final : public Hook {
 public:
  using Options = OverflowOptions;
  using Row = OverflowResult::Finding;
  static constexpr ToolNames kNames{"OpOverflowCheck", "overflow_check", "overflow"};

  explicit OverflowHook(const ResolvedOverflowOptions& options);
  ~OverflowHook() override;

  std::string_view name() const override { return kNames.tool; }
  Wants wants() const override {
    return {.gradients = true, .borrows_gradients = true, .graphs = true, .device_values = true, .progress = true};
  }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;
  std::string folder() const override;
  void add_coverage(Coverage& account) const override;

  OverflowResult result() const;

 private:
  std::string untold_text() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

using OpOverflowCheck = ToolScope<OverflowHook>;

}  // namespace op_tools
