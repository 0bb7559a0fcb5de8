// A tool for some calls only: apply_feature() wraps a hook in it. The condition is asked before each call that the
// filter admits; where it says no, the hook takes no part in the call, nor in its backward.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>

#include "base/export.h"
#include "hooks/hook.h"
#include "hooks/scope.h"
#include "tensor/value.h"

namespace op_tools {

// Looks at a call before it runs. Asked by any thread, many times at once. When it throws, that is logged once and the
// answer is no.
using Condition = std::function<bool(OpCall&)>;

class OP_TOOLS_API ConditionalHook final : public Hook {
 public:
  ConditionalHook(std::shared_ptr<Hook> hook, Condition condition);

  std::string_view name() const override { return hook_->name(); }
  Wants wants() const override { return hook_->wants(); }
  std::unique_ptr<HookState> before(OpCall& call) override;
  void after(OpCall& call, HookState* state) override { hook_->after(call, state); }
  bool is_innermost() const override { return hook_->is_innermost(); }
  bool is_executor() const override { return hook_->is_executor(); }
  void execute(OpCall& call) override { hook_->execute(call); }
  Value report() const override { return hook_->report(); }
  void add_coverage(Coverage& account) const override { hook_->add_coverage(account); }
  std::string folder() const override { return hook_->folder(); }
  void flush() override { hook_->flush(); }
  void step_begins(int64_t step) override { hook_->step_begins(step); }
  void run_ends(const std::function<Coverage()>& account) override { hook_->run_ends(account); }
  void scope_left() override { hook_->scope_left(); }

 private:
  bool wanted(OpCall& call);

  const std::shared_ptr<Hook> hook_;
  const Condition condition_;
  std::atomic<bool> logged_{false};
};

// A tool by its name ("OpFallback") or feature ("fallback", "autocompare", "op_capture", "cast_dtype", ...), its
// settings as a Dict (ops, skip, level, and its own), on until the scope is left or destroyed. Error when a name or
// setting is wrong.
//
//   auto scope = op_tools::apply_feature("fallback", make_dict({{"ops", "mm"}}), [](OpCall& call) {
//     return flatten_tensors(call.args()).front().scalar_type() == at::kHalf;
//   });
OP_TOOLS_API std::unique_ptr<HookScope> apply_feature(std::string_view feature, const Value& settings,
                                                      Condition condition = nullptr);

}  // namespace op_tools
