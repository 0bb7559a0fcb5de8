// Where two runs part: a verdict for each pair of calls, and the first call in each step whose results differ though
// its inputs agree. What a difference makes of the calls after it is followed along the links from values to the calls
// that made them. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"
#include "record/recording.h"
#include "runs/alignment.h"

namespace op_tools {

enum class CallVerdict : uint8_t {
  kAgrees,
  kBorn,     // its inputs agree, its results do not
  kCarried,  // its inputs differ already
  kHealed,   // its inputs differ, its results agree
  kOnlyA,    // the other run has no such call
  kOnlyB,
  kNotCompared,  // there is nothing to compare it by
};
OP_TOOLS_API std::string_view to_string(CallVerdict verdict);  // "born here"

// In what way the results (of kOnlyA, kOnlyB: what other calls make of them) differ.
enum class Finding : uint8_t {
  kNone,
  kError,  // one of the calls raised
  kShape,
  kNonfinite,  // NaN or infinities on one side
  kNumbers,
  kRandom,      // numbers of a call that draws random ones
  kFirstInput,  // a parameter, gradient or input of the program is another one from the start
  kOtherInput,  // it reads the result of another call than its partner does
  kExtraCall,   // a call that only one run makes changes what the calls after it read
};
OP_TOOLS_API std::string_view to_string(Finding finding);

constexpr uint32_t kNoRow = kNoCall;

struct ComparedCalls {
  uint32_t a = kNoCall, b = kNoCall;  // of a group: the last of its calls
  uint32_t group = kNoCall;           // in Alignment::groups
  CallVerdict verdict = CallVerdict::kAgrees;
  Finding finding = Finding::kNone;
  bool other_op = false, other_dtype = false, other_shape = false, other_scalars = false;
  // Relative to the tensors' norms: the largest of the inputs, that of the output with the largest share of its limit,
  // and that limit. `noise`: what the noise recording has there; 0: there is none.
  double input_difference = 0, output_difference = 0, limit = 0, noise = 0;
  uint32_t value_a = kNoCall, value_b = kNoCall;  // that output; of kFirstInput that input
  uint32_t source = kNoRow;                       // the row in which the difference was born; of kBorn itself
  uint32_t via = kNoRow;                          // the row that handed it on
  double share() const { return limit > 0 ? output_difference / limit : output_difference > 0 ? 1e9 : 0; }
  bool is_birth() const { return finding != Finding::kNone; }
};

struct Divergence {
  std::vector<ComparedCalls> rows;           // in the order of the runs
  std::vector<uint32_t> row_of_a, row_of_b;  // by number of the call; kNoRow: in none
  // For each step that diverges: its first birth; where it has none, its first call that carries a difference.
  std::vector<std::pair<int64_t, uint32_t>> first_by_step;
  uint32_t first = kNoRow;  // of all: the first birth
};

// A recording of A's program whose rounding was changed: by how much each value may differ.
struct Noise {
  std::vector<double> of_value;  // by number of A's value, relative; NaN: not known
};
OP_TOOLS_API Noise noise_of(const Recording& a, const Recording& other, const Alignment& alignment);
constexpr double kNoiseFactor = 8;  // as many times the noise pass

OP_TOOLS_API Divergence find_divergence(const Recording& a, const Recording& b, const Alignment& alignment,
                                        const Noise* noise = nullptr);

}  // namespace op_tools
