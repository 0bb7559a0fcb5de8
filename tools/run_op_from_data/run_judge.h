// Judges the runs of a captured call against what was saved of it and against the CPU's run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compare/call_judge.h"
#include "compare/metrics/tolerance.h"
#include "compare/rerun/run_outcome.h"
#include "run_op_from_data/arguments.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/report.h"
#include "tensor/value.h"

namespace op_tools::replay {

struct RunResult {
  std::string target;
  std::string raised;  // what the operator raised; empty when it returned
  Value result;
  Tensors mutable_inputs;                // all input tensors, as they are after the call
  std::vector<Tensors> input_gradients;  // by backward pass
  double forward_ms = 0;
  std::vector<double> backward_ms;
  bool uninitialized = false;
  bool returns_nothing = false;
  int workspace = -1;
  bool random = false;  // drew random numbers that are not those of the captured call
};

// The float64 runs of one call, made when they are asked for.
using GoldenRuns = std::function<const RunResult&(const RunVariant&)>;

// Any thread.
class RunJudge {
 public:
  // `options` is kept by reference. Throws Error when a variable with a tolerance is wrong.
  explicit RunJudge(const ReplayOptions& options)
      : options_(options), tolerances_(ToleranceTable::from_environment()) {}

  std::vector<Check> against_saved(const SavedCall& call, const RunResult& run, const GoldenRuns& golden) const;
  std::vector<Check> against_cpu(const SavedCall& call, const RunResult& run, const RunResult& reference,
                                 const GoldenRuns& golden) const;

 private:
  CallFacts facts_of(const SavedCall& call, const RunResult& run) const;

  const ReplayOptions& options_;
  const ToleranceTable tolerances_;
};

}  // namespace op_tools::replay
