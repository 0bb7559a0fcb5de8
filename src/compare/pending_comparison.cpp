#include "compare/pending_comparison.h"

#include <utility>

#include "calls/call_files.h"
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
    const bool there = held && known && is_dense_in_memory(copies[i]) && is_dense_in_memory(results[i]);
    fingerprints.emplace_back(results[i], there ? without_bits(copies[i]) : at::Tensor(),
                              known ? copies[i] : results[i]);
  }
  for (size_t i = 0; i < live.size(); ++i) {
    // What the call writes is fingerprints as it is afterwards.
    const bool as_before = before.size() == live.size() && before[i].defined() && !observed.run.written[i];
    fingerprints.emplace_back(live[i], as_before ? before[i] : at::Tensor(), live[i]);
  }
  return fingerprints;
}

std::vector<SavedSide> sides_of(const PendingComparison& observed, const RunOutcome* reference) {
  const ComparedState& state = *observed.state;
  const std::string& name = state.call.name;
  const uint64_t id = state.call.id;
  const Values& in = *sequence_items(state.replayable->inputs().value);
  const auto of_run = [&](std::string side, const RunOutcome& run) {
    SavedSide saved;
    saved.side = std::move(side);
    saved.bytes = state.replayable->bytes();
    std::vector<std::pair<Value, Value>> beside{{std::string(kJudgedKey), facts_value(observed.facts)}};
    if (const auto* moved = state.random_state.get_if<Dict>(); moved && !moved->items->empty()) {
      beside.emplace_back("rng", state.random_state);
    }
    saved.files.emplace_back(CallFile::kInput, call_file(name, id, in[0], in[1], std::move(beside)));
    if (observed.call.phase == Phase::kBackward) {
      const Snapshot inputs = take_snapshot(list_of(run.gradients), "");
      const Snapshot outputs =
          take_snapshot(list_of(observed.output_gradients), "", /*owned=*/true, /*restride=*/false);
      saved.files.emplace_back(CallFile::kGradInputs, call_file(name, id, inputs.value, make_dict({})));
      saved.files.emplace_back(CallFile::kGradOutputs,
                               call_file(name, id, outputs.value, make_dict({}),
                                         {{std::string(kIncompleteKey), observed.facts.incomplete}}));
      saved.bytes += inputs.bytes + outputs.bytes;
    } else if (run.returned()) {
      std::vector<std::pair<Value, Value>> changed;
      for (size_t i = 0; i < run.inputs.size() && i < state.replayable->tensors().size(); ++i) {
        if (run.inputs[i].defined() && !same_bits(run.inputs[i], state.replayable->tensors()[i])) {
          changed.emplace_back(static_cast<int64_t>(i), run.inputs[i]);
        }
      }
      const Snapshot out = take_snapshot(make_tuple({run.result, make_dict(std::move(changed))}), "");
      const Values& parts = *sequence_items(out.value);
      std::vector<std::pair<Value, Value>> more{{std::string(kMemoryKey), memory_value(run)}};
      if (!parts[1].get_if<Dict>()->items->empty()) more.emplace_back("mutated", parts[1]);
      saved.files.emplace_back(CallFile::kOutput,
                               call_file(name, id, make_tuple({parts[0]}), make_dict({}), std::move(more)));
      saved.bytes += out.bytes;
    }
    CallMeta meta = state.meta;
    meta.error = run.raised;
    if (meta.outputs.empty()) meta.outputs = take_snapshot(observed.run.result, "").tensors;
    saved.meta = meta.to_json();
    return saved;
  };
  std::vector<SavedSide> sides;
  sides.push_back(of_run("device", observed.run));
  if (reference && reference->returned()) sides.push_back(of_run("cpu", *reference));
  return sides;
}

}  // namespace op_tools
