#include "compare/rerun/saved_run.h"

#include <utility>

#include "compare/metrics/tensor_diff.h"

namespace op_tools {
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

}  // namespace

SavedRun::SavedRun(const ReplayableCall& replayable, const CallMeta& meta, const Value& random_state) {
  call.set_call(meta, random_state);
  const Snapshot& before = replayable.inputs();
  const Values& in = *sequence_items(before.value);
  Snapshot inputs = take_snapshot(make_tuple({in[0], in[1]}), "");
  bytes = inputs.bytes;
  call.set_inputs(std::move(inputs));
  call.meta.inputs = before.tensors;  // as the program had them
}

void SavedRun::add_results(const ReplayableCall& replayable, const RunOutcome& run) {
  Snapshot outputs = take_snapshot(make_tuple({run.result, changed_inputs(replayable.tensors(), run)}), "");
  bytes += outputs.bytes;
  call.set_output(std::move(outputs));
}

void SavedRun::add_backward(const std::vector<at::Tensor>& output_gradients, const std::vector<at::Tensor>& gradients,
                            bool incomplete) {
  Snapshot arriving = take_snapshot(list_of(output_gradients), ""), left = take_snapshot(list_of(gradients), "");
  bytes += arriving.bytes + left.bytes;
  call.backward.push_back({std::move(arriving.value), std::move(left.value), incomplete});
}

}  // namespace op_tools
