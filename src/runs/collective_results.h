// What the ranks of a process group got from a collective, against what they gave to it: as far as statistics tell. A
// sum's projections are the sum of the projections; what is passed on unchanged keeps its hash; of tensors that are put
// together counts and extremes are known. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/recording.h"

namespace op_tools {

// A rank's call, in the order of the ranks.
struct RankCall {
  const Recording* run;
  uint32_t call;
  int64_t rank;  // among all
};

// The process group of a collective, and how many ranks are in it; empty: not known.
struct GroupOfCall {
  std::string name;
  size_t ranks = 0;
};
GroupOfCall group_of(const Recording& run, uint32_t call);

// Which of the ranks' results do not follow from what all of them gave. Empty: none, or their statistics do not say it.
std::vector<size_t> wrong_results(const std::vector<RankCall>& ranks);

}  // namespace op_tools
