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

void CachedRuns::keep(const RunVariant& variant, const RunOutcome& run, size_t input_bytes) {
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
  std::vector<TensorFingerprint> remembered;
  remembered.reserve(results.size() + live.size());
  const std::vector<at::Tensor>& before = observed.subject->specimen->tensors();
  const std::vector<at::Tensor> kept = observed.at_once ? observed.same_results : flatten_tensors(observed.run.result);
  // The CPU's copy is not held for it: the program holds the result once. But where the CPU's run waits for backward.
  const bool held = observed.at_once && observed.subject->kept.has(RunVariant::Kind::kReference);
  for (size_t i = 0; i < results.size(); ++i) {
    const bool known = kept.size() == results.size() && kept[i].defined() && kept[i].strides() == results[i].strides();
    const bool there = held && known && is_dense_in_memory(kept[i]) && is_dense_in_memory(results[i]);
    remembered.emplace_back(results[i], there ? without_bits(kept[i]) : at::Tensor(), known ? kept[i] : results[i]);
  }
  for (size_t i = 0; i < live.size(); ++i) {
    // What the call writes is remembered as it is afterwards.
    const bool as_before = before.size() == live.size() && before[i].defined() && !observed.run.written[i];
    remembered.emplace_back(live[i], as_before ? before[i] : at::Tensor(), live[i]);
  }
  return remembered;
}

std::vector<SavedSide> sides_of(const PendingComparison& observed, const RunOutcome* reference) {
  const ComparedState& subject = *observed.subject;
  const std::string& name = subject.call.name;
  const uint64_t id = subject.call.id;
  const Values& in = *sequence_items(subject.specimen->inputs().value);
  const auto of_run = [&](std::string side, const RunOutcome& run) {
    SavedSide saved;
    saved.side = std::move(side);
    saved.bytes = subject.specimen->bytes();
    std::vector<std::pair<Value, Value>> beside{{std::string(kJudgedKey), facts_value(observed.facts)}};
    if (const auto* moved = subject.random_state.get_if<Dict>(); moved && !moved->items->empty()) {
      beside.emplace_back("rng", subject.random_state);
    }
    saved.files.emplace_back(CallFile::kInput, call_file(name, id, in[0], in[1], std::move(beside)));
    if (observed.call.phase == Phase::kBackward) {
      const Snapshot inputs = take_snapshot(list_of(run.gradients), "");
      const Snapshot outputs = take_snapshot(list_of(observed.output_gradients), "", /*owned=*/true, /*restride=*/false);
      saved.files.emplace_back(CallFile::kGradInputs, call_file(name, id, inputs.value, make_dict({})));
      saved.files.emplace_back(CallFile::kGradOutputs, call_file(name, id, outputs.value, make_dict({}),
                                         {{std::string(kIncompleteKey), observed.facts.incomplete}}));
      saved.bytes += inputs.bytes + outputs.bytes;
    } else if (run.returned()) {
      std::vector<std::pair<Value, Value>> changed;
      for (size_t i = 0; i < run.inputs.size() && i < subject.specimen->tensors().size(); ++i) {
        if (run.inputs[i].defined() && !same_bits(run.inputs[i], subject.specimen->tensors()[i])) {
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
    CallMeta meta = subject.meta;
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
