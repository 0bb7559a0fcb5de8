// Does a place of the program leak? A leak grows until the end, and holds blocks that were allocated in many steps, or
// made of these. Memory that a program allocates once (parameters, an optimizer's state, a cache) does not grow in the
// second half of the steps; memory that it allocates anew in each step is of a single step. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace op_tools {

constexpr int64_t kFewestSteps = 4;  // that say whether a place grows

struct PlaceSample {
  int64_t blocks = 0, bytes = 0;  // that are alive
};

struct PlaceHistory {
  std::vector<PlaceSample> samples;  // at the ends of steps, at equal distances
  // The judgement while the program ran: at its end, functions have freed their variables.
  bool leaked = false, leaked_by_bytes = false;
};

// Of the blocks of a place that are alive.
struct BlockAges {
  int64_t birth_steps = 0;  // different steps in which they were allocated
  // The most earlier steps in which the place made the parts of a block: x = cat([x, new]) is a single block all the
  // time.
  int64_t remade_steps = 0;

  bool by_bytes() const { return birth_steps < 3; }  // else the number of blocks says more: their sizes may vary
  int64_t steps() const { return birth_steps > remade_steps ? birth_steps : remade_steps + 1; }
};

// Bytes per step of a place that grows in the second half of the steps until the end. `interval`: steps from sample to
// sample.
std::optional<double> growth_of(const PlaceHistory& history, uint32_t interval, bool by_bytes);

// `now`: blocks and bytes at present.
bool is_leaking(const PlaceHistory& history, uint32_t interval, const BlockAges& ages, const PlaceSample& now);

struct LeakVerdict {
  bool leaks = false;
  double growth = 0;  // bytes per step
};
LeakVerdict judge_leak(const PlaceHistory& history, uint32_t interval, const BlockAges& ages, const PlaceSample& now);

}  // namespace op_tools
