// Sums of gradients: where several calls read a tensor, the autograd engine adds up the gradients that they give,
// between the calls' nodes, and onto a parameter's `.grad`. No torch function makes these sums. A torch-level hook that
// wants them (Wants::gradient_sums) gets them as calls of the aten level, from a scope beside its own.
#pragma once

#include <memory>

#include "base/options.h"
#include "hooks/hook.h"

namespace op_tools {

class HookScope;

// The scope beside that of a torch-level hook with these options; nullptr: the hook does not want sums, or its options
// leave them out. Sums belong to no module and to no listed call, and their name is that of an addition.
std::unique_ptr<HookScope> scope_of_gradient_sums(const std::shared_ptr<Hook>& hook, const ResolvedOptions& options);

}  // namespace op_tools
