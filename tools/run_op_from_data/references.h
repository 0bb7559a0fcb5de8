// The CPU's runs of a captured call, made when the judge asks for them and cached until the call is judged: in its
// own dtypes, in float64, from changed inputs. They are ReplayableCall's, as in live judging. One thread.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "compare/rerun/replayable_call.h"
#include "run_op_from_data/captured_call.h"
#include "run_op_from_data/program_state.h"

namespace op_tools::replay {

class References {
 public:
  // All but `run` are held by reference.
  References(const SavedCall& call, StateGate& gate, ReplayableCall::Operator run);

  // `alone`: the operator draws random numbers, so no other call may run meanwhile. Known after the first run under
  // test.
  void set_alone(bool alone) { alone_ = alone; }

  RunOutcome forward(const RunVariant& variant);
  // With the gradients of this backward pass.
  RunOutcome backward(const RunVariant& variant, size_t pass);

 private:
  using Key = std::tuple<RunVariant::Kind, int, bool, size_t>;  // kind, sample, coarse, backward pass
  static constexpr size_t kNoPass = SIZE_MAX;

  const ReplayableCall& replayable();
  const RunOutcome& run(const RunVariant& variant, size_t pass);

  const SavedCall& call_;
  StateGate& gate_;
  ReplayableCall::Operator operator_;
  bool alone_ = true;
  std::unique_ptr<const ReplayableCall> replayable_;
  std::map<Key, RunOutcome> runs_;
};

}  // namespace op_tools::replay
