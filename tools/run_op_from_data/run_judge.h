// Judges the runs of a captured call against its saved results and against the CPU's run.
#pragma once

#include <string>
#include <vector>

#include "compare/call_judge.h"
#include "compare/metrics/tolerance.h"
#include "compare/rerun/run_outcome.h"
#include "run_op_from_data/arguments.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/references.h"
#include "run_op_from_data/resolve.h"
#include "tensor/value.h"

namespace op_tools::replay {

// A run of a captured call on the device under test.
struct TestRun {
  BoundCall bound;                       // the call that ran
  RunOutcome outcome;                    // of the forward call
  std::vector<Tensors> input_gradients;  // by backward pass
  double forward_ms = 0;
  std::vector<double> backward_ms;
  std::string written_beside;  // MemoryBeside::changes()
  bool random = false;         // drew random numbers that are not those of the captured call
  bool on_device = true;       // on that under test: a call without tensors may run elsewhere
};

// Any thread.
class RunJudge {
 public:
  // `options` is held by reference. Throws Error when a variable with a tolerance is wrong.
  explicit RunJudge(const ReplayOptions& options)
      : options_(options), tolerances_(ToleranceTable::from_environment()) {}

  std::vector<Check> against_saved(const SavedCall& call, const TestRun& run, References& references) const;
  std::vector<Check> against_cpu(const SavedCall& call, const TestRun& run, References& references) const;
  // A run on the CPU against float64.
  std::vector<Check> alone(const SavedCall& call, const TestRun& run, References& references) const;
  // A failure of OpAutoCompare, which judged the saved values: the same verdict once more.
  std::vector<Check> saved_failure(const SavedCall& call, References& references) const;

 private:
  // What a capture says of its results' strides, against the CPU's.
  std::vector<Check> saved_memory(const SavedCall& call, const TestRun& run, References& references) const;
  CallFacts facts_of(const SavedCall& call, const TestRun& run) const;
  CallFacts recorded_facts(const SavedCall& call) const;

  const ReplayOptions& options_;
  const ToleranceTable tolerances_;
};

}  // namespace op_tools::replay
