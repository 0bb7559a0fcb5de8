// The results of a process group's ranks from a collective, against their inputs: as far as statistics tell. A
// sum's projections are the sum of the projections; a tensor that is passed on unchanged keeps its hash; of tensors
// that are put together counts and extremes are known. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// What is the same on all ranks that take part in a collective: the operator, its root, its reduction, and the shapes
// where all have the same. Empty: it is no collective of which results are compared.
std::string form_on_all_ranks(const Recording& run, uint32_t call);
// Is an output at this place what the collective brings? Not an input that lies in the memory of the result.
bool is_received(std::string_view op, std::string_view place);

// By rank: do its results follow from the inputs of all? nullopt: their statistics do not say it.
std::vector<std::optional<bool>> follow_from_inputs(const std::vector<RankCall>& ranks);

}  // namespace op_tools
