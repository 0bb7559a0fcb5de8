// Many runs of a program, or the ranks of a run that are replicas: which of them is the odd one out, and in which
// call? Where runs gave a call the same bits, its results must have the same bits; so must those of a collective that
// gives all ranks of its group the same, within a launch, and parameters that began with the same bits. The majority's
// bits are right. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/alignment.h"

namespace op_tools {

enum class OddFinding : uint8_t {
  kResults,        // others of the same inputs
  kParameter,      // not its results: it reads or leaves a parameter that differs from that of the other runs
  kCollective,     // others than those of the same collective on other ranks
  kNotFromInputs,  // of a collective: not the value made of the ranks' inputs
  kChangedInput,   // so far it had the bits of the others, and reads other ones in memory that its calls made
  kGiven,          // to a collective: other values than the same rank of other launches, and so its results are others
};

struct OddCall {
  uint32_t run = 0;       // its number in the list
  uint32_t call = 0;      // in that run
  uint32_t majority = 0;  // a run of the majority
  uint32_t majority_call = 0;
  uint32_t like_it = 0, others = 0;  // how many runs have its results, and how many the majority's
  OddFinding finding = OddFinding::kResults;
  uint32_t collective = kNoCall;  // the first call after it, in its run, that other processes take part in
  bool is_reached = false;        // it comes behind a collective with a rank of its launch that was odd before
};

// Whether the results of a call could be compared with those of other runs.
enum class CallVote : uint8_t {
  kCompared,   // others gave it the same bits, or have the inputs of its collective
  kOwnInputs,  // no other run gave it these bits: its data are its own, or follow from them
  kDrawn,      // random numbers and data of ranks
  kNoValues,   // values without statistics, or that nothing wrote
  kNoPartner,  // no other run makes the call
  kCount
};
inline constexpr std::array kCallVoteNames{"compared", "own_inputs", "drawn", "no_values", "no_partner"};  // to Python

struct OddCalls {
  // The first such call of each run; runs that never were odd are in none. Where `like_it` is `others` it is not known
  // which is right: all but the first of them are odd.
  std::vector<OddCall> odd;
  // By run: calls that only it or only the first run makes, and whose results go into calls of both: it is another
  // program, and later calls are not compared. (What rank 0 computes for a log goes into none.)
  std::vector<uint32_t> apart;
  std::array<uint64_t, static_cast<size_t>(CallVote::kCount)> calls{};  // of all runs, those with results
};
// At least two runs, and by run a number for its launch: ranks of a launch take part in the same collectives. Empty:
// all are of one.
OP_TOOLS_API OddCalls find_odd_calls(const std::vector<const Recording*>& runs, std::vector<uint32_t> launches = {});

}  // namespace op_tools
