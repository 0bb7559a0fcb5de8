#include "compare/pending_comparison.h"

#include <utility>

#include "compare/metrics/tensor_diff.h"
#include "fallback/cpu_runner.h"
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
    const bool there = held && known && lies_densely(kept[i]) && lies_densely(results[i]);
    remembered.emplace_back(results[i], there ? without_bits(kept[i]) : at::Tensor(), known ? kept[i] : results[i]);
  }
  for (size_t i = 0; i < live.size(); ++i) {
    // What the call writes is remembered as it is afterwards.
    const bool as_before = before.size() == live.size() && before[i].defined() && !observed.run.written[i];
    remembered.emplace_back(live[i], as_before ? before[i] : at::Tensor(), live[i]);
  }
  return remembered;
}

namespace {

// Input tensors that the run changed: Dict {index: tensor}.
Value changed_inputs(const std::vector<at::Tensor>& before, const RunOutcome& run) {
  std::vector<std::pair<Value, Value>> changed;
  for (size_t i = 0; i < run.inputs.size() && i < before.size(); ++i) {
    if (run.inputs[i].defined() && !same_bits(run.inputs[i], before[i])) {
      changed.emplace_back(static_cast<int64_t>(i), run.inputs[i]);
    }
  }
  return make_dict(std::move(changed));
}

SavedSide side_of(std::string side, const PendingComparison& observed, const RunOutcome& run) {
  const ComparedState& subject = *observed.subject;
  SavedSide saved;
  saved.side = std::move(side);
  SavedCall& call = saved.call;
  call.name = subject.call.name;
  call.id = subject.call.id;
  call.rng = subject.random_state;
  const Snapshot& before = subject.specimen->inputs();
  const Values& in = *sequence_items(before.value);
  Snapshot inputs = take_snapshot(make_tuple({in[0], in[1]}), "");
  saved.bytes = inputs.bytes;
  call.meta = subject.meta;
  call.set_inputs(std::move(inputs));
  call.meta.inputs = before.tensors;  // as the program had them
  call.meta.error = run.raised;
  if (observed.call.phase == Phase::kBackward) {
    Snapshot outputs = take_snapshot(list_of(observed.output_gradients), "");
    Snapshot gradients = take_snapshot(list_of(run.gradients), "");
    saved.bytes += outputs.bytes + gradients.bytes;
    call.backward.push_back({std::move(outputs.value), std::move(gradients.value)});
    call.first_pass = subject.saved_passes;
  } else if (run.returned()) {
    Snapshot outputs = take_snapshot(make_tuple({run.result, changed_inputs(subject.specimen->tensors(), run)}), "");
    saved.bytes += outputs.bytes;
    call.set_output(std::move(outputs));
    if (!subject.meta.outputs.empty()) call.meta.outputs = subject.meta.outputs;
  }
  return saved;
}

}  // namespace

std::vector<SavedSide> sides_of(const PendingComparison& observed, const RunOutcome* reference) {
  std::vector<SavedSide> sides;
  sides.push_back(side_of("device", observed, observed.run));
  if (reference && reference->returned()) sides.push_back(side_of("cpu", observed, *reference));
  if (observed.call.phase == Phase::kBackward) ++observed.subject->saved_passes;
  return sides;
}

}  // namespace op_tools
