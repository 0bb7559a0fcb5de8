// --invariance: OpInvariance on for the calls that are replayed, each at its own level. In the thread that replays.
#pragma once

#include <memory>
#include <optional>

#include "hooks/op_call.h"
#include "hooks/scope.h"
#include "invariance/invariance_hook.h"

namespace op_tools::replay {

class SavedInvariance {
 public:
  SavedInvariance();  // Error: a variable of its options is wrong

  // The calls of this level are seen while the object lives.
  class Calls {
   public:
    Calls(SavedInvariance& all, Level level);
    ~Calls();
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

   private:
    HookScope& scope_;
  };

  // The closing tables, and the exit status (arguments.h) of what they say.
  int finish(bool allow_unseen);

 private:
  struct AtLevel {
    explicit AtLevel(Level level);
    const ResolvedInvarianceOptions options;
    const std::shared_ptr<InvarianceHook> hook;
    HookScope scope;
  };
  AtLevel aten_{Level::kAten}, torch_{Level::kTorch};
};

}  // namespace op_tools::replay
