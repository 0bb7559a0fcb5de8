#include "compare/pending_comparison.h"

#include <utility>

#include "compare/metrics/tensor_diff.h"
#include "compare/saved_facts.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

std::atomic<size_t> CachedRuns::held_{0};

CachedRuns::~CachedRuns() {
  held_.fetch_sub(bytes_);
}

void CachedRuns::add(const RunVariant& variant, const RunOutcome& run, size_t input_bytes) {
  size_t bytes = input_bytes;
  for (const at::Tensor& tensor : flatten_tensors(run.result)) bytes += tensor.has_storage() ? tensor.nbytes() : 0;
  if (held_.load() + bytes > kMost) return;
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  held_.fetch_add(bytes);
  runs_.insert_or_assign(variant.kind, run);
}

std::optional<RunOutcome> CachedRuns::take(const RunVariant& variant) {
  const std::lock_guard lock(mutex_);
  auto node = runs_.extract(variant.kind);
  return node ? std::optional(std::move(node.mapped())) : std::nullopt;
}

bool CachedRuns::has(RunVariant::Kind precision) {
  const std::lock_guard lock(mutex_);
  return runs_.count(precision) > 0;
}

std::vector<TensorFingerprint> remember(const PendingComparison& observed, const std::vector<at::Tensor>& results,
                                        const std::vector<at::Tensor>& live) {
  std::vector<TensorFingerprint> fingerprints;
  fingerprints.reserve(results.size() + live.size());
  const std::vector<at::Tensor>& before = observed.state->replayable->tensors();
  const std::vector<at::Tensor> copies =
      observed.at_once ? observed.same_results : flatten_tensors(observed.run.result);
  // The CPU's copy is held only where the CPU's run is cached for backward anyway.
  const bool held = observed.at_once && observed.state->cached_runs.has(RunVariant::Kind::kReference);
  for (size_t i = 0; i < results.size(); ++i) {
    const bool known =
        copies.size() == results.size() && copies[i].defined() && copies[i].strides() == results[i].strides();
    const bool is_comparable = held && known && is_dense_in_memory(copies[i]) && is_dense_in_memory(results[i]);
    fingerprints.emplace_back(results[i], is_comparable ? without_bits(copies[i]) : at::Tensor(),
                              known ? copies[i] : results[i]);
  }
  for (size_t i = 0; i < live.size(); ++i) {
    // Tensors that the call writes are fingerprinted afterwards.
    const bool as_before = before.size() == live.size() && before[i].defined() && !observed.run.written[i];
    fingerprints.emplace_back(live[i], as_before ? before[i] : at::Tensor(), live[i]);
  }
  return fingerprints;
}

namespace {

SavedSide side_of(std::string side, const PendingComparison& observed, const RunOutcome& run,
                  const std::string& written_beside) {
  const ComparedState& state = *observed.state;
  SavedRun saved(*state.replayable, state.meta, state.random_state);
  SavedCall& call = saved.call;
  call.judged = facts_value(observed.facts);
  call.meta.error = run.raised;
  if (observed.call.phase == Phase::kBackward) {
    saved.add_backward(observed.output_gradients, run.gradients, observed.facts.pass.incomplete);
    call.first_pass = state.saved_passes;
  } else if (run.returned()) {
    saved.add_results(*state.replayable, run);
    call.output->memory = memory_value(run, written_beside);
    if (!state.meta.outputs.empty()) call.meta.outputs = state.meta.outputs;
  }
  return {std::move(side), std::move(call), saved.bytes};
}

}  // namespace

std::vector<SavedSide> sides_of(const PendingComparison& observed, const RunOutcome* reference) {
  std::vector<SavedSide> sides;
  sides.push_back(side_of("device", observed, observed.run, observed.written_beside));
  if (reference && reference->returned()) sides.push_back(side_of("cpu", observed, *reference, ""));
  if (observed.call.phase == Phase::kBackward) ++observed.state->saved_passes;
  return sides;
}

}  // namespace op_tools
