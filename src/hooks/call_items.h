// Calls by where the program makes them, the same from run to run: a list of calls (`calls=`) consists of these. An
// item stands for calls in every training step. Each call has three, from coarse to fine:
//   op and phase | the same, module and line | the same, and its occurrence: the how-manyth of these in the step
// and an item by which a recording's call is found again: op, phase, and the how-manyth call of that operator in the
// step. Of a backward call, module and line are those of the forward call that its autograd node belongs to.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/call_list.h"
#include "base/export.h"
#include "hooks/op_call.h"

namespace op_tools {

struct CallItem {
  std::string op, module, line;
  Phase phase = Phase::kForward;
  int64_t occurrence = 0;
  std::array<uint64_t, 3> hashes{};  // from coarse to fine
  uint64_t in_order = 0;

  OP_TOOLS_API bool is_in(const CallList& list) const;
};

// The item `in_order` of a call: the occurrence-th of this operator in this phase of a step.
OP_TOOLS_API uint64_t item_in_order(std::string_view op, Phase phase, int64_t occurrence);

// Numbers the calls of a scope. Asked in before(), for every call that the filter admits.
class OP_TOOLS_API CallItems {
 public:
  CallItem next(OpCall& call, int64_t step);

 private:
  std::mutex mutex_;
  int64_t step_ = -1;
  std::unordered_map<uint64_t, int64_t> counts_;  // in this step
};

}  // namespace op_tools
