#include "run_op_from_data/saved_invariance.h"

#include "run_op_from_data/arguments.h"

namespace op_tools::replay {
namespace {

// Each saved call counts: it was chosen when it was saved.
ResolvedInvarianceOptions options_at(Level level) {
  InvarianceOptions options;
  options.first_n_per_signature = kNoLimit;
  options.level = level;
  return resolve(options);
}

}  // namespace

SavedInvariance::AtLevel::AtLevel(Level level)
    : options(options_at(level)), hook(std::make_shared<InvarianceHook>(options)), scope(hook, options.scope) {}

SavedInvariance::SavedInvariance() {
  for (AtLevel* at_level : {&aten_, &torch_}) {
    at_level->scope.enter();
    at_level->scope.suspend();
  }
}

SavedInvariance::Calls::Calls(SavedInvariance& all, Level level)
    : scope_((level == Level::kAten ? all.aten_ : all.torch_).scope) {
  scope_.resume();
}

SavedInvariance::Calls::~Calls() {
  scope_.suspend();
}

int SavedInvariance::finish(bool allow_unseen) {
  uint64_t kept = 0, varied = 0, unjudged = 0;
  for (AtLevel* at_level : {&aten_, &torch_}) {
    at_level->scope.resume();
    at_level->scope.leave();
    const InvarianceResult result = at_level->hook->result();
    kept += result.kept.total();
    varied += result.varied.total();
    unjudged += result.unjudged.total();
  }
  if (varied > 0) return kDiffers;
  return kept > unjudged || allow_unseen ? kAgrees : kIncomplete;
}

}  // namespace op_tools::replay
