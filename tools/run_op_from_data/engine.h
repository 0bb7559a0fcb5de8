// Runs a captured call on a device and judges it: replay.cpp does so with all calls of a folder, and
// shrink_command.cpp with many forms of a call. Any thread may replay.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "base/op_filter.h"
#include "calls/call_store.h"
#include "run_op_from_data/arguments.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/program_state.h"
#include "run_op_from_data/references.h"
#include "run_op_from_data/replay.h"
#include "run_op_from_data/report.h"
#include "run_op_from_data/resolve.h"
#include "run_op_from_data/run_inputs.h"
#include "run_op_from_data/run_judge.h"
#include "run_op_from_data/saved_invariance.h"

namespace op_tools::replay {

class Engine {
 public:
  // `invariance`: of --invariance, else nullptr.
  Engine(const ReplayOptions& options, PythonCaller* caller, SavedInvariance* invariance = nullptr)
      : options_(options),
        caller_(caller),
        invariance_(invariance),
        device_(options.device),
        filter_(options.filter, "", "--filter", ""),
        judge_(options) {}

  CallReport replay(const StoredCall& stored);

  // Runs the call on the device and compares it with the CPU's run (a call on the CPU: with float64). A backward pass
  // that raises throws.
  std::vector<Check> compare_with_cpu(const SavedCall& call);
  // Runs the call forward on the CPU.
  RunOutcome run_on_cpu(const SavedCall& call);

 private:
  BoundCall bind(const std::string& name, const CallArguments& arguments) const;
  ReplayableCall::Operator operator_of(const SavedCall& call) const;
  void replay(const StoredCall& stored, SavedCall& call, CallReport* report);
  TestRun run_once(const SavedCall& call);
  void run_forward(const SavedCall& call, const RunInputs& inputs, TestRun* run);
  void run_backward(const SavedCall& call, const RunInputs& inputs, TestRun* run) const;
  std::vector<Check> judge(const SavedCall& call, const TestRun& run, References& references) const;

  const ReplayOptions& options_;
  PythonCaller* const caller_;
  SavedInvariance* const invariance_;
  const c10::Device device_;
  const OpFilter filter_;
  const RunJudge judge_;
  const Resolver resolver_;
  StateGate gate_;
};

}  // namespace op_tools::replay
