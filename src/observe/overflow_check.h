// OpOverflowCheck: NaN and infinities where there were none. Each call is asked whether its inputs and its outputs hold
// such values. A call with sound inputs and unsound outputs is a *producer*; one that was given them is a *propagator*.
//
// On the CPU the answers come at once. On a device they are computed there and read for a window of calls together; the
// calls of the window are then judged in their order, so the producer is named exactly, only later.
//
// A producer's call is saved for run_op_from_data, with its inputs as they were before it (kept_call.h): on a device
// the window holds on to them, and what is about to be written is copied there first.
//
// An infinity can be intended: attention masks are full of -inf. Outputs of the operators in `allow` that hold -inf and
// nothing else are sound, and so is what is made of them as long as it is -inf only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/export.h"
#include "hooks/hook.h"
#include "hooks/reads_gradients.h"
#include "hooks/tool.h"
#include "hooks/tool_scope.h"
#include "observe/overflow_options.h"

namespace op_tools {

struct OverflowResult {
  struct Finding {
    bool producer = false;
    bool expected = false;  // in backward, with allow_in_backward_with_scaler
    std::string op;
    uint64_t id = 0;
    int64_t step = 0;
    bool backward = false;
    // Of the tensors of the result, then of inputs that the call wrote without returning them; in backward at level
    // torch: of the input gradients.
    size_t output = 0;
    std::string dtype;
    std::vector<int64_t> shape;
    // Unknown (-1) when the program had overwritten the tensor before the window was read.
    int64_t nan = -1, pos_inf = -1, neg_inf = -1;
    std::vector<int64_t> first;
    std::vector<std::string> stack;  // innermost line of the user's first
    std::string module;              // "ResNet.layer3.0.conv1"; empty: none
    std::string saved;               // folder of the producer's call, for run_op_from_data; empty: not saved
    std::string not_saved;           // why a producer was not
  };
  std::vector<Finding> findings;  // in the order of the calls, at most `max_findings`
  uint64_t producers = 0, propagators = 0, expected = 0;
  uint64_t calls = 0;  // that were asked
  std::string root;    // the folder; empty when there was nothing to write
  bool ok() const { return producers == 0; }
};

class OP_TOOLS_API OverflowHook final : public Hook, public ReadsGradients {
 public:
  using Options = OverflowOptions;

  explicit OverflowHook(const ResolvedOverflowOptions& options);
  ~OverflowHook() override;

  std::string_view name() const override { return "OpOverflowCheck"; }
  Wants wants() const override { return {.gradients = true}; }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override;
  void scope_left() override;
  void flush() override;
  Value report() const override;

  const ResolvedOptions& options() const;
  OverflowResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

OP_TOOLS_API void read_into(Settings& settings, OverflowOptions& options);

using OpOverflowCheck = ToolScope<OverflowHook>;

}  // namespace op_tools
