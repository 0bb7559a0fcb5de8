#include "hooks/gradient_sums.h"

#include <string_view>
#include <utility>

#include "base/op_filter.h"
#include "hooks/backward_pass.h"
#include "hooks/scope.h"

namespace op_tools {
namespace {

constexpr std::string_view kSums = "aten::add.Tensor, aten::add_.Tensor";

class GradientSums final : public Hook {
 public:
  explicit GradientSums(std::shared_ptr<Hook> hook) : hook_(std::move(hook)) {}

  std::string_view name() const override { return hook_->name(); }
  Wants wants() const override { return {.inputs_after = hook_->wants().inputs_after}; }
  std::unique_ptr<HookState> before(OpCall& call) override {
    if (is_in_backward()) return hook_->before(call);
    call.decline();
    return nullptr;
  }
  void after(OpCall& call, HookState* state) override { hook_->after(call, state); }

 private:
  const std::shared_ptr<Hook> hook_;
};

}  // namespace

std::unique_ptr<HookScope> scope_of_gradient_sums(const std::shared_ptr<Hook>& hook, const ResolvedOptions& options) {
  const bool admits = options.filter->admits("torch.add") && options.filter->admits("torch.Tensor.add_");
  if (options.level != Level::kTorch || !hook->wants().gradient_sums || !admits || options.modules || options.calls) {
    return nullptr;
  }
  ResolvedOptions of_sums = options;
  of_sums.level = Level::kAten;
  auto filter = std::make_shared<OpFilter>(kSums, "", "", "");
  for (const std::string_view name : {"aten::add.Tensor", "aten::add_.Tensor"}) filter->saw(name);  // no advice on it
  of_sums.filter = std::move(filter);
  return std::make_unique<HookScope>(std::make_shared<GradientSums>(hook), std::move(of_sums));
}

}  // namespace op_tools
