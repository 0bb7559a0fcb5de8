// Two sequences of keys, aligned: which positions in the first belong to which in the second, in order. Keys that are
// unique on both sides are anchors (patience diff); between anchors the longest common subsequence is found with Myers'
// O(ND) algorithm in linear space. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/export.h"

namespace op_tools {

using Keys = std::span<const uint64_t>;
// Positions of a pair of equal keys; a list of them rises on both sides.
using Matches = std::vector<std::pair<uint32_t, uint32_t>>;

// The most insertions and deletions that are looked for between two anchors; a part that has more stays without pairs.
// The time grows with the square.
constexpr int64_t kMostEdits = 20'000;

// All pairs of a longest common subsequence through the anchors.
OP_TOOLS_API Matches align_keys(Keys a, Keys b, int64_t most_edits = kMostEdits);

// The anchors alone: keys that each side has once, those of them that are in the same order. Key 0 is none.
OP_TOOLS_API Matches unique_matches(Keys a, Keys b);

}  // namespace op_tools
