#include "compare/observed_call.h"

#include <utility>

#include "capture/call_files.h"
#include "compare/tensor_diff.h"
#include "fallback/cpu_runner.h"
#include "hooks/plain_tensor.h"

namespace op_tools {

std::atomic<size_t> KeptRuns::held_{0};

KeptRuns::~KeptRuns() {
  held_.fetch_sub(bytes_);
}

void KeptRuns::keep(const RunKind& kind, const CallRun& run, size_t input_bytes) {
  size_t bytes = input_bytes;
  for (const at::Tensor& tensor : flatten_tensors(run.result)) bytes += tensor.has_storage() ? tensor.nbytes() : 0;
  if (held_.load() + bytes > kMost) return;
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  held_.fetch_add(bytes);
  runs_.insert_or_assign(kind.precision, run);
}

std::optional<CallRun> KeptRuns::take(const RunKind& kind) {
  const std::lock_guard lock(mutex_);
  auto node = runs_.extract(kind.precision);
  return node ? std::optional(std::move(node.mapped())) : std::nullopt;
}

bool KeptRuns::has(RunKind::Precision precision) {
  const std::lock_guard lock(mutex_);
  return runs_.count(precision) > 0;
}

std::vector<Remembered> remember(const Observed& observed, const std::vector<at::Tensor>& results,
                                 const std::vector<at::Tensor>& live) {
  std::vector<Remembered> remembered;
  remembered.reserve(results.size() + live.size());
  const std::vector<at::Tensor>& before = observed.subject->specimen->tensors();
  const std::vector<at::Tensor> kept = observed.at_once ? observed.same_results : flatten_tensors(observed.run.result);
  // The CPU's copy is not held for it: the program holds the result once. But where the CPU's run waits for backward.
  const bool held = observed.at_once && observed.subject->kept.has(RunKind::Precision::kSame);
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

std::vector<SavedSide> sides_of(const Observed& observed, const CallRun* reference) {
  const Subject& subject = *observed.subject;
  const std::string& name = subject.call.name;
  const uint64_t id = subject.call.id;
  const Values& in = *sequence_items(subject.specimen->inputs().value);
  const auto of_run = [&](std::string side, const CallRun& run) {
    SavedSide saved;
    saved.side = std::move(side);
    saved.bytes = subject.specimen->bytes();
    std::vector<std::pair<Value, Value>> beside;
    if (const auto* moved = subject.random_state.get_if<Dict>(); moved && !moved->items->empty()) {
      beside.emplace_back("rng", subject.random_state);
    }
    saved.files.emplace_back(CallFile::kInput, call_file(name, id, in[0], in[1], std::move(beside)));
    if (observed.call.phase == Phase::kBackward) {
      const Snapshot inputs = take_snapshot(list_of(run.gradients), "");
      const Snapshot outputs = take_snapshot(list_of(observed.output_gradients), "");
      saved.files.emplace_back(CallFile::kGradInputs, call_file(name, id, inputs.value, make_dict({})));
      saved.files.emplace_back(CallFile::kGradOutputs, call_file(name, id, outputs.value, make_dict({})));
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
      std::vector<std::pair<Value, Value>> mutated;
      if (!parts[1].get_if<Dict>()->items->empty()) mutated.emplace_back("mutated", parts[1]);
      saved.files.emplace_back(CallFile::kOutput,
                               call_file(name, id, make_tuple({parts[0]}), make_dict({}), std::move(mutated)));
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
