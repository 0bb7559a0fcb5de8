#include "calls/retained_call.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "calls/schema_text.h"
#include "calls/snapshot.h"
#include "calls/stripped_value.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

NotedInputs::NotedInputs(OpCall& call, ProgramState state) : state_(std::move(state)) {
  const auto note = [&](const at::Tensor& tensor) {
    Noted noted;
    if (has_plain_memory(tensor)) {
      noted.storage.emplace(tensor.storage().getWeakStorageImpl());
      noted.has_version = !tensor.is_inference();
      if (noted.has_version) {
        noted.version_counter = tensor.unsafeGetTensorImpl()->version_counter();
        noted.version = noted.version_counter.current_version();
      }
      noted.requires_grad = tensor.requires_grad();
      noted.keys = tensor.key_set();
      noted.dtype = tensor.dtype();
      noted.sizes = tensor.sizes().vec();
      noted.strides = tensor.strides().vec();
      noted.offset = tensor.storage_offset();
    }
    tensors_.push_back(std::move(noted));
  };
  args_ = strip_tensors(call.args(), note);
  kwargs_ = strip_tensors(call.kwargs(), note);
}

bool NotedInputs::recall(Value* args, Value* kwargs) const {
  std::vector<at::Tensor> live;
  for (const Noted& noted : tensors_) {
    if (!noted.storage) return false;
    if (noted.has_version && noted.version_counter.current_version() != noted.version) return false;
    auto storage = noted.storage->lock();
    if (!storage) return false;
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), noted.keys, noted.dtype);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(noted.sizes, noted.strides, noted.offset);
    tensor.set_requires_grad(noted.requires_grad);
    live.push_back(std::move(tensor));
  }
  auto next = live.begin();
  const auto fill = [&] { return Value(*next++); };
  *args = restore_tensors(args_, fill);
  *kwargs = restore_tensors(kwargs_, fill);
  return true;
}

InputsBefore InputsBefore::of(const std::vector<at::Tensor>& inputs, const std::vector<bool>& written,
                              const std::function<bool(const at::Tensor&)>& is_unwritten) {
  InputsBefore before;
  before.versions.reserve(inputs.size());
  for (const at::Tensor& tensor : inputs) before.versions.push_back(version_of(tensor));
  if (written.empty()) return before;
  // A tensor that shares memory with a written tensor changes with it.
  int64_t bytes = 0;
  std::vector<size_t> copied;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!has_plain_memory(inputs[i])) continue;
    for (size_t j = 0; j < inputs.size() && j < written.size(); ++j) {
      if (!written[j] || (i != j && !share_memory(inputs[i], inputs[j]))) continue;
      copied.push_back(i);
      bytes += static_cast<int64_t>(inputs[i].nbytes());
      break;
    }
  }
  before.too_large = bytes > kMostCopied;
  if (before.too_large) return before;
  for (const size_t i : copied) {
    before.copies.emplace(
        i, is_unwritten(inputs[i]) ? VersionedTensor::unwritten_like(inputs[i]) : VersionedTensor::copy_of(inputs[i]));
  }
  return before;
}

void RetainedCall::take_call(OpCall& call) {
  meta = CallMeta::of({}, CallAfter::of(call, /*rank=*/0, /*with_schema=*/false));
  if (call.op) handle = *call.op;
}

void RetainedCall::take_inputs(OpCall& call, InputsBefore before) {
  meta.state = ProgramState::of(call);
  too_large = before.too_large;
  const auto take = [&](const at::Tensor& tensor) {
    const size_t i = inputs.size();
    const auto copy = before.copies.find(i);
    if (copy != before.copies.end()) return inputs.push_back(std::move(copy->second));
    // Written by the call without our knowing beforehand: its old elements are lost.
    const bool changed = i >= before.versions.size() || before.versions[i] != version_of(tensor);
    inputs.push_back(changed ? VersionedTensor() : VersionedTensor(tensor));
  };
  args = strip_tensors(call.args(), take);
  kwargs = strip_tensors(call.kwargs(), take);
}

std::string RetainedCall::why_not_saved() const {
  for (const VersionedTensor& input : inputs) {
    if (input.is_unchanged()) continue;
    return too_large ? "the call wrote into more than 64 MB of its inputs"
                     : "its inputs were changed before this was known, or have no form in a file";
  }
  return {};
}

namespace {

Value with_tensors(const Value& stripped, std::vector<VersionedTensor>::const_iterator& next) {
  return restore_tensors(stripped, [&] { return Value((next++)->tensor()); });
}

}  // namespace

std::optional<SavedCall> RetainedCall::saved_call(size_t* bytes) const {
  SavedCall saved;
  saved.set_call(meta, rng);
  saved.meta.schema = schema_text(handle ? &*handle : nullptr, meta.name);

  const bool is_backward = meta.phase == Phase::kBackward;
  Value forward_args, forward_kwargs;
  auto input = inputs.begin();
  if (!is_backward) {
    forward_args = with_tensors(args, input);
    forward_kwargs = with_tensors(kwargs, input);
  } else if (!forward || !forward->recall(&forward_args, &forward_kwargs)) {
    return std::nullopt;
  }
  if (is_backward) saved.meta.state = forward->state();
  Snapshot inputs_of_forward = take_snapshot(make_tuple({forward_args, forward_kwargs}), "");
  *bytes = inputs_of_forward.bytes;
  saved.set_inputs(std::move(inputs_of_forward));

  auto output = outputs.begin();
  if (is_backward) {
    Snapshot grad_inputs = take_snapshot(with_tensors(result, output), "");
    Snapshot grad_outputs = take_snapshot(with_tensors(args, input), "");
    *bytes += grad_inputs.bytes + grad_outputs.bytes;
    saved.backward.push_back({std::move(grad_outputs.value), std::move(grad_inputs.value)});
    return saved;
  }
  const bool overwritten = std::any_of(outputs.begin(), outputs.end(), [](const VersionedTensor& output) {
    return output.tensor().defined() && !output.is_unchanged();
  });
  if (overwritten) return saved;
  std::vector<std::pair<Value, Value>> changed;
  for (const auto& [index, place] : written) {
    changed.emplace_back(static_cast<int64_t>(index), outputs[place].tensor());
  }
  // A single snapshot: a result which is a changed input is stored once.
  Snapshot results = take_snapshot(make_tuple({with_tensors(result, output), make_dict(std::move(changed))}), "");
  *bytes += results.bytes;
  saved.set_output(std::move(results));
  return saved;
}

bool CallArchive::wants(std::string_view op, Phase phase) const {
  if (is_full()) return false;
  if (saved_.empty()) return true;
  const auto entry = saved_.find({std::string(op), phase});
  return entry == saved_.end() || entry->second < per_op_;
}

std::string CallArchive::save(const RetainedCall& call, const std::string& root, int64_t rank, std::string* why_not) {
  if (!wants(call.meta.name, call.meta.phase)) {
    *why_not = is_full() ? "max_saved_mb is reached" : "max_saved calls of this operator were saved before";
    return {};
  }
  *why_not = call.why_not_saved();
  if (!why_not->empty()) return {};
  size_t bytes = 0;
  std::optional<SavedCall> saved = call.saved_call(&bytes);
  if (!saved) {
    *why_not = "the inputs of the forward call are gone or were changed";
    return {};
  }
  saved->meta.rank = rank;
  if (!store_) store_ = CallStore::in_folder(root);
  std::string folder = write_call(*store_, *saved);
  store_->flush();
  ++saved_[{call.meta.name, call.meta.phase}];
  bytes_left_ -= static_cast<int64_t>(bytes);
  return folder;
}

}  // namespace op_tools
