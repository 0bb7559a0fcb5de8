// Which calls of two recordings belong together.
//
// Steps by their numbers; in a step forward calls by thread, in order: first calls whose tensors have the same bits,
// once on each side; then by module, operator and shapes; then without the module; then by operator alone. Moved
// calls are found by their keys, fused or split calls become a group. A backward call belongs to the backward call of
// the partner of its forward call: another order of the engine is no difference. A call that only moves a tensor to
// another device is no partner of another call; it has a partner that moves, where both runs have as many in that
// place. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/call_groups.h"

namespace op_tools {

struct Alignment {
  // By number of the call: its partner; kNoCall: it has none, or is in a group.
  std::vector<uint32_t> b_of_a, a_of_b;
  std::vector<bool> moves_a, moves_b;  // by number of the call: it only moves a tensor to another device
  std::vector<uint32_t> move_b_of_a;   // by number of the call: the partner of a call that only moves, or kNoCall
  std::vector<CallGroup> groups;
  std::vector<uint32_t> group_of_a, group_of_b;  // kNoCall: in none
  // Steps that the other run did not record. Their calls are in no row of a comparison.
  std::vector<int64_t> steps_only_a, steps_only_b;

  bool alone_in_a(uint32_t call) const {
    return b_of_a[call] == kNoCall && group_of_a[call] == kNoCall && !moves_a[call];
  }
  bool alone_in_b(uint32_t call) const {
    return a_of_b[call] == kNoCall && group_of_b[call] == kNoCall && !moves_b[call];
  }
};

OP_TOOLS_API Alignment align_runs(const Recording& a, const Recording& b, const std::vector<Fusion>& fusions = {});

}  // namespace op_tools
