// Where two runs part: a verdict for each pair of calls, and the first call in each step whose results differ though
// its inputs agree. The effect of a difference on later calls is followed along the links from values to the calls
// that made them. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/alignment.h"
#include "runs/call_verdict.h"
#include "runs/noise.h"

namespace op_tools {

constexpr uint32_t kNoRow = kNoCall;

struct ComparedCalls {
  uint32_t a = kNoCall, b = kNoCall;  // of a group: the last of its calls
  uint32_t group = kNoCall;           // in Alignment::groups
  CallVerdict verdict = CallVerdict::kAgrees;
  Finding finding = Finding::kNone;
  bool other_op = false, other_dtype = false, other_shape = false, other_scalars = false;
  // Relative to the tensors' norms: the largest of the inputs, that of the output with the largest share of its limit,
  // and that limit. `noise`: that of the noise recording; 0: there is none.
  double input_difference = 0, output_difference = 0, limit = 0, noise = 0;
  uint32_t value_a = kNoCall, value_b = kNoCall;  // that output; of kFirstInput and kChangedInput that input
  uint32_t source = kNoRow;                       // the row in which the difference was born; of kBorn itself
  uint32_t via = kNoRow;                          // the row that handed it on
  uint32_t seen_in = kNoRow;                      // of a birth: the row of the call whose inputs or results showed it
  double share() const { return limit > 0 ? output_difference / limit : output_difference > 0 ? 1e9 : 0; }
  bool is_birth() const { return finding != Finding::kNone; }
  // Seen where the runs have different calls (a network that is a single operator there): by a pairing that may
  // be chance.
  bool is_by_calls_alone() const {
    return finding == Finding::kExtraCall || finding == Finding::kOtherInput || finding == Finding::kShape ||
           (is_birth() && group != kNoCall);
  }
};

struct Divergence {
  std::vector<ComparedCalls> rows;           // in the order of the runs
  std::vector<uint32_t> row_of_a, row_of_b;  // by number of the call; kNoRow: in none
  // For each step that diverges: its first birth; where it has none, its first call that carries a difference.
  std::vector<std::pair<int64_t, uint32_t>> first_by_step;
  uint32_t first = kNoRow;  // of all: the birth that was seen first
  bool is_judged = true;    // false: nothing was named, but most rows say nothing about the runs (conclusion.h)
};

OP_TOOLS_API Divergence find_divergence(const Recording& a, const Recording& b, const Alignment& alignment,
                                        const Noise* noise = nullptr);

}  // namespace op_tools
