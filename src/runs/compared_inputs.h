// The inputs of a pair of calls, or of groups of them: how far they are apart, and why. Called by find_divergence() for
// each pair, in the order of the calls. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "record/recording.h"
#include "runs/alignment.h"
#include "runs/call_facts.h"
#include "runs/compared_values.h"
#include "runs/divergence.h"
#include "runs/expected_error.h"
#include "runs/gradient_terms.h"
#include "runs/module_rows.h"
#include "runs/noise.h"
#include "runs/optimizer_steps.h"
#include "runs/tf32_products.h"
#include "runs/value_difference.h"

namespace op_tools {

// In what way two values differ.
Finding finding_of(const ValueDifference& difference);

// The inputs of a pair, as far as they decide about the verdict.
struct ComparedInputs {
  CallInputs facts;
  ValuePairs pairs;
  uint32_t reader = kNoCall;  // A's call, where it is a single call
  // Of an operator on lists: the inputs of each item of them; -1: of all.
  struct Item {
    std::vector<uint32_t> values;
    double difference = 0, absolute = 0;
  };
  std::map<int64_t, Item> items;
  uint32_t carried = kNoRow;  // the row from which a difference comes
  Finding born = Finding::kNone;
  uint32_t extra = kNoRow;  // the row of a call of a single run, from which a difference comes
  double extra_difference = 0;
  uint32_t value_a = kNoCall, value_b = kNoCall;
};

// The facts about the pairs that were compared so far.
struct ComparedSoFar {
  ComparedSoFar(const Recording& a, const Recording& b);
  // A birth in `row`, which may be that of the call being compared. A late difference is behind earlier differences,
  // wherever it was made.
  void note_birth(uint32_t row, uint32_t seen_in);

  Divergence divergence;
  std::vector<uint32_t> made_a, made_b;  // by value: the row that handed a difference to it; kNoRow: none
  std::vector<float> usual;  // by A's value: how far apart the two may be where they are read again, as a share
  ModuleRows modules;
  GradientTerms terms;
  double explained = 0;             // the largest relative difference that was explained
  uint32_t first_seen_in = kNoRow;  // found.first's
};

class InputComparison {
 public:
  // All of them outlive the object. `so_far`: groups are named in it whose readers show that their results differ.
  InputComparison(const Recording& a, const Recording& b, const Alignment& alignment, const ComparedValues& pairs,
                  const Noise* noise, ComparedSoFar* so_far);

  // `steps`: the two calls are forms of an optimizer's step.
  ComparedInputs look_at(const Compared& calls, const ComparedSteps* steps);

  const std::vector<uint32_t>& sources_a() const { return sources_a_; }
  // The value shows memory that was never written.
  bool is_unwritten(uint32_t value_a, uint32_t value_b) const { return unwritten_a_[value_a] || unwritten_b_[value_b]; }
  bool is_unwritten_in(const Recording& run, uint32_t value) const {
    return (&run == &a_ ? unwritten_a_ : unwritten_b_)[value];
  }

 private:
  void look_at_input(uint32_t value_a, uint32_t value_b, int64_t item, ComparedInputs* inputs);
  bool knows_results_of(uint32_t group, const ComparedInputs& inputs) const;
  bool is_usual_unseen(uint32_t value_a, const RecordedValue& b, const ValueDifference& difference) const;
  void look_at_ports(const Compared& calls, ComparedInputs* inputs) const;
  void look_at_forward(const Compared& calls, ComparedInputs* inputs) const;
  void look_inside(const Compared& calls, ComparedInputs* inputs) const;
  void name_group(uint32_t row, uint32_t value_a, uint32_t value_b, const ValueDifference& difference);
  bool is_read_again(uint32_t value_a, uint32_t value_b) const;
  uint32_t origin_of(uint32_t value_a, uint32_t value_b, double relative, ComparedInputs* inputs);

  const Recording &a_, &b_;
  const Alignment& aligned_;
  const ComparedValues& pairs_;
  const Noise* const noise_;
  ComparedSoFar* const so_far_;
  const Tf32Products tf32_a_, tf32_b_;
  const std::vector<bool> unwritten_a_, unwritten_b_;
  const std::vector<uint32_t> sources_a_, sources_b_;  // by value
  const double gradient_rms_;                          // the largest
  const CallsById forward_, forward_b_;
};

}  // namespace op_tools
