// The identity of a call, for data that outlives it: records, rows, files. Plain data; any thread.
// The time tool's records (timing/time_records.h) hold the same as numbers into tables: 72 bytes, for millions of
// calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/op_call.h"

namespace op_tools {

// Where a call stands in the run.
struct CallPosition {
  uint64_t id = 0;
  int64_t step = 0;
  Level level = Level::kAten;
  Phase phase = Phase::kForward;
  uint32_t pass = 0;  // which backward pass over the call

  bool operator==(const CallPosition&) const = default;
  static CallPosition of(const OpCall& call) { return {call.id, call.step, call.level, call.phase, call.pass}; }
};

struct CallInfo : CallPosition {
  std::string name;
  std::vector<std::string> stack;  // "file:line function", the user's innermost line first
  std::string module;              // "ResNet.layer3.0.conv1"; empty: none

  bool operator==(const CallInfo&) const = default;
  // The user's line that made the call; empty: not known.
  std::string line() const { return stack.empty() ? std::string() : stack.front(); }

  // All but stack and module, which cost time: the hook asks for them where it wants them.
  static CallInfo of(const OpCall& call) { return {CallPosition::of(call), std::string(call.name), {}, {}}; }
};

}  // namespace op_tools
