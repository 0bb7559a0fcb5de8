#include "hooks/gradient_sums.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/op_filter.h"
#include "hooks/backward_pass.h"
#include "hooks/scope.h"

namespace op_tools {
namespace {

constexpr std::string_view kSums[] = {"aten::add.Tensor", "aten::add_.Tensor"};

class GradientSums final : public Hook {
 public:
  explicit GradientSums(std::shared_ptr<Hook> hook) : hook_(std::move(hook)) {}

  std::string_view name() const override { return hook_->name(); }
  Wants wants() const override { return {.inputs_after = hook_->wants().inputs_after}; }
  std::unique_ptr<HookState> before(OpCall& call) override {
    if (is_in_backward()) {
      sums_.fetch_add(1, std::memory_order_relaxed);
      return hook_->before(call);
    }
    call.decline();
    return nullptr;
  }
  void after(OpCall& call, HookState* state) override { hook_->after(call, state); }
  void add_coverage(Coverage& account) const override { account.seen += sums_.load(); }

 private:
  const std::shared_ptr<Hook> hook_;
  std::atomic<uint64_t> sums_{0};
};

}  // namespace

std::unique_ptr<HookScope> scope_of_gradient_sums(const std::shared_ptr<Hook>& hook, const ResolvedOptions& options) {
  if (options.level != Level::kTorch || !hook->wants().gradient_sums) return nullptr;
  if (options.modules || options.calls) return nullptr;
  const OpFilter* const filter = options.filter.get();
  if (filter && !(filter->admits("torch.add") && filter->admits("torch.Tensor.add_"))) return nullptr;
  ResolvedOptions of_sums = options;
  of_sums.level = Level::kAten;
  auto additions = std::make_shared<OpFilter>(std::string(kSums[0]) + "," + std::string(kSums[1]), "", "", "");
  for (const std::string_view sum : kSums) additions->saw(sum);  // no advice on filter items that matched nothing
  of_sums.filter = std::move(additions);
  return std::make_unique<HookScope>(std::make_shared<GradientSums>(hook), std::move(of_sums));
}

}  // namespace op_tools
