#include "hooks/conditional_hook.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/stop_program.h"
#include "hooks/tool.h"
#include "tensor/exception_text.h"

namespace op_tools {

ConditionalHook::ConditionalHook(std::shared_ptr<Hook> hook, Condition condition)
    : hook_(std::move(hook)), condition_(std::move(condition)) {}

bool ConditionalHook::wanted(OpCall& call) {
  std::string why;
  try {
    return condition_(call);
  } catch (const std::exception& error) {
    if (hold_for_program(error)) return false;
    why = exception_text(error);
  } catch (...) {
    why = "an exception of unknown type";
  }
  if (!logged_.exchange(true)) {
    log::error("the condition of " + std::string(name()) + " failed on " + std::string(call.name) +
               ", which counts as no, here and wherever it fails: " + why);
  }
  return false;
}

std::unique_ptr<HookState> ConditionalHook::before(OpCall& call) {
  // Backward of a call comes only where the hook took part in the call.
  if (call.phase == Phase::kForward && !wanted(call)) {
    call.decline();
    return nullptr;
  }
  return hook_->before(call);
}

std::unique_ptr<HookScope> apply_feature(std::string_view feature, const Value& settings, Condition condition) {
  Tool tool = find_tool(feature).open(settings);
  if (condition) tool.hook = std::make_shared<ConditionalHook>(std::move(tool.hook), std::move(condition));
  auto scope = std::make_unique<HookScope>(std::move(tool.hook), std::move(tool.options));
  scope->enter();
  return scope;
}

}  // namespace op_tools
