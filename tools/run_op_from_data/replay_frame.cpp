#include "run_op_from_data/replay_frame.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <utility>

#include "hooks/backward_source.h"
#include "hooks/chain.h"
#include "hooks/current_chain.h"
#include "tensor/internal_guard.h"

namespace op_tools::replay {
namespace {

// The recorded aten call belongs to the recorded arguments: on others the operator is found by the call's name.
class ReplayRunner final : public OpRunner {
 public:
  explicit ReplayRunner(ReplayableCall::Operator run) : run_(std::move(run)) {}
  Value run(const Value& args, const Value& kwargs) const override { return run_({args, kwargs, {}}); }

 private:
  const ReplayableCall::Operator run_;
};

class ReplayFrame final : public Frame {
 public:
  // All are held by reference. `chain`: nullptr when no hook takes the call.
  ReplayFrame(Level level, const RunInputs& inputs, BoundCall& bound, const ReplayableCall::Operator& again,
              Stopwatch& stopwatch, const Chain* chain)
      : level_(level), inputs_(inputs), bound_(bound), again_(again), stopwatch_(stopwatch) {
    if (chain && level == Level::kTorch) backward_.emplace(*chain);
  }

  Value args() override { return inputs_.args; }
  Value kwargs() override { return inputs_.kwargs; }
  Value result() override { return result_; }
  Value aten_call() override { return inputs_.aten; }
  bool is_identity() override { return backward_ && backward_->is_identity(); }
  std::shared_ptr<const OpRunner> runner() override { return std::make_shared<ReplayRunner>(again_); }

  void prepare(OpCall& call) override {
    if (backward_) backward_->prepare(call);
  }
  void conclude(OpCall& call) override {
    if (backward_) backward_->conclude(call);
  }

  void proceed() override {
    // Inner calls of an aten operator belong to it; inner calls of a torch call are aten calls of the program.
    std::optional<SeenByHooks> seen;
    if (level_ == Level::kTorch) seen.emplace(true);
    stopwatch_.start();
    try {
      result_ = bound_.run();
    } catch (...) {
      milliseconds_ = stopwatch_.stop();
      throw;
    }
    milliseconds_ = stopwatch_.stop();
  }

  double milliseconds() const { return milliseconds_; }

 private:
  const Level level_;
  const RunInputs& inputs_;
  BoundCall& bound_;
  const ReplayableCall::Operator& again_;
  Stopwatch& stopwatch_;
  std::optional<BackwardSource> backward_;
  Value result_;
  double milliseconds_ = 0;
};

std::optional<c10::OperatorHandle> operator_named(const std::string& name) {
  const auto dot = name.find('.');
  const c10::OperatorName parsed(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchema(parsed);
}

}  // namespace

SeenByHooks::SeenByHooks(bool seen) : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, !seen);
}
SeenByHooks::~SeenByHooks() {
  c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, excluded_before_);
}

Value run_in_chain(const SavedCall& call, const RunInputs& inputs, BoundCall& bound,
                   const ReplayableCall::Operator& again, Stopwatch& stopwatch, double* milliseconds) {
  const Level level = level_of(call);
  const CurrentChain current(level);
  const uint32_t mask = current.get() ? current.get()->mask_for(call.name) : 0;
  ReplayFrame frame(level, inputs, bound, again, stopwatch, mask ? current.get() : nullptr);
  const auto run = [&] {
    if (mask == 0) return frame.proceed();
    const GuardedState thread;
    OpCall op_call(call.id ? call.id : next_call_id(), level, Phase::kForward, call.name, frame, thread);
    const auto op = level == Level::kAten ? operator_named(call.name) : std::nullopt;
    if (op) op_call.op = &*op;
    current.get()->run(mask, op_call);
  };
  try {
    run();
  } catch (...) {
    *milliseconds = frame.milliseconds();
    throw;
  }
  *milliseconds = frame.milliseconds();
  return frame.result();
}

}  // namespace op_tools::replay
