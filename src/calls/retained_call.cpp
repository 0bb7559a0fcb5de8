#include "calls/retained_call.h"

#include <c10/core/TensorImpl.h>

#include <chrono>

#include "base/log.h"
#include "calls/call_files.h"
#include "calls/snapshot.h"
#include "calls/stripped_value.h"
#include "tensor/copy_memory.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// A strided tensor with memory of its own to hold on to.
bool can_be_kept(const at::Tensor& tensor) {
  std::string what;
  return tensor.defined() && why_not_plain(tensor, &what).empty() && tensor.layout() == at::kStrided &&
         !tensor._is_zerotensor();
}

at::Tensor copied(const at::Tensor& tensor) {
  at::Tensor copy = private_copy(tensor);
  copy.set_requires_grad(tensor.requires_grad());
  return copy;
}

}  // namespace

bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.has_storage() && other.has_storage() && one.storage().is_alias_of(other.storage());
}

bool shows_part_of(const at::Tensor& whole, const at::Tensor& part) {
  if (whole.dtype() != part.dtype() || part.layout() != at::kStrided) return false;
  const at::IntArrayRef sizes = own_sizes(part), strides = own_strides(part);
  if (!whole.is_non_overlapping_and_dense()) {
    return whole.storage_offset() == part.storage_offset() && own_sizes(whole) == sizes &&
           own_strides(whole) == strides;
  }
  int64_t last = part.storage_offset();
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return part.storage_offset() >= whole.storage_offset() && last < whole.storage_offset() + whole.numel();
}

VersionedTensor::VersionedTensor(const at::Tensor& tensor) {
  if (!can_be_kept(tensor)) return;
  tensor_ = same_memory(tensor);
  if (tensor.requires_grad()) tensor_.set_requires_grad(true);
  version_ = version_of(tensor_);
}

VersionedTensor VersionedTensor::copy_of(const at::Tensor& tensor) {
  VersionedTensor kept;
  if (!can_be_kept(tensor)) return kept;
  kept.tensor_ = copied(tensor);
  kept.version_ = version_of(kept.tensor_);
  return kept;
}

VersionedTensor VersionedTensor::unwritten_like(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.is_non_overlapping_and_dense()) return copy_of(tensor);
  VersionedTensor kept;
  if (!can_be_kept(tensor)) return kept;
  kept.tensor_ = private_empty_like(tensor, tensor.scalar_type());
  kept.tensor_.set_requires_grad(tensor.requires_grad());
  kept.version_ = version_of(kept.tensor_);
  return kept;
}

bool VersionedTensor::is_what_it_was() const {
  return tensor_.defined() && version_of(tensor_) == version_;
}

bool VersionedTensor::would_copy(const at::Tensor& written) const {
  return is_what_it_was() && share_memory(tensor_, written);
}

int64_t VersionedTensor::before_write(const at::Tensor& written, Copies& copies) {
  if (!would_copy(written)) return 0;
  auto [copy, is_new] = copies.of(tensor_);
  tensor_ = std::move(copy);
  version_ = version_of(tensor_);
  return is_new ? static_cast<int64_t>(tensor_.nbytes()) : 0;
}

std::pair<at::Tensor, bool> VersionedTensor::Copies::of(const at::Tensor& tensor) {
  const auto* memory = static_cast<const char*>(tensor.storage().data());
  const void* first = memory + tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  at::Tensor& copy = made_[{first, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()}];
  const bool is_new = !copy.defined();
  if (is_new) copy = copied(tensor);
  return {copy, is_new};
}

NotedInputs::NotedInputs(OpCall& call, ProgramState state) : state_(std::move(state)) {
  const auto note = [&](const at::Tensor& tensor) {
    Noted noted;
    if (can_be_kept(tensor)) {
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
  std::vector<at::Tensor> found;
  for (const Noted& noted : tensors_) {
    if (!noted.storage) return false;
    if (noted.has_version && noted.version_counter.current_version() != noted.version) return false;
    auto storage = noted.storage->lock();
    if (!storage) return false;
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), noted.keys, noted.dtype);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(noted.sizes, noted.strides, noted.offset);
    tensor.set_requires_grad(noted.requires_grad);
    found.push_back(std::move(tensor));
  }
  auto next = found.begin();
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
  // What shares memory with a written tensor changes with it.
  int64_t bytes = 0;
  std::vector<size_t> copied;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!can_be_kept(inputs[i])) continue;
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
  op = call.name;
  level = call.level;
  phase = call.phase;
  id = call.id;
  step = call.step;
  if (call.op) handle = *call.op;
}

void RetainedCall::take_inputs(OpCall& call, InputsBefore before) {
  state = ProgramState::of(call);
  too_large = before.too_large;
  const auto take = [&](const at::Tensor& tensor) {
    const size_t i = inputs.size();
    const auto copy = before.copies.find(i);
    if (copy != before.copies.end()) return inputs.push_back(std::move(copy->second));
    // Written by the call without our knowing beforehand: what it was is lost.
    const bool changed = i >= before.versions.size() || before.versions[i] != version_of(tensor);
    inputs.push_back(changed ? VersionedTensor() : VersionedTensor(tensor));
  };
  args = strip_tensors(call.args(), take);
  kwargs = strip_tensors(call.kwargs(), take);
}

bool CallArchive::wants(std::string_view op, Phase phase) const {
  if (is_full()) return false;
  if (saved_.empty()) return true;
  const auto found = saved_.find({std::string(op), phase});
  return found == saved_.end() || found->second < per_op_;
}

std::string CallArchive::save(const RetainedCall& call, const std::string& root, int64_t rank, std::string* why_not) {
  if (!wants(call.op, call.phase)) {
    *why_not = is_full() ? "max_saved_mb is reached" : "max_saved calls of this operator were saved before";
    return {};
  }
  const auto values = [](const Value& hollow, std::vector<VersionedTensor>::const_iterator& next) {
    return restore_tensors(hollow, [&] { return Value((next++)->tensor()); });
  };
  for (const VersionedTensor& input : call.inputs) {
    if (input.is_what_it_was()) continue;
    *why_not = call.too_large ? "the call wrote into more than 64 MB of its inputs"
                              : "its inputs were changed before this was known, or have no form in a file";
    return {};
  }
  Value args, kwargs;
  auto input = call.inputs.begin();
  if (call.phase == Phase::kForward) {
    args = values(call.args, input);
    kwargs = values(call.kwargs, input);
  } else if (!call.forward || !call.forward->recall(&args, &kwargs)) {
    *why_not = "the inputs of the forward call are gone or were changed";
    return {};
  }

  if (!store_) store_ = CallStore::in_folder(root);
  const CallKey key{call.op, call.id};
  Snapshot inputs = take_snapshot(make_tuple({args, kwargs}), "", /*owned=*/false, /*restride=*/false);
  const Values& in = *sequence_items(inputs.value);
  const auto write = [&](CallFile file, const Value& value) {
    const std::string path = store_->write(key, file, 0, value);
    log::info(path + " saved");
    return path;
  };
  const std::string path = write(CallFile::kInput, call_file(call.op, call.id, in[0], in[1]));

  CallMeta meta;
  meta.name = call.op;
  meta.level = call.level;
  meta.id = call.id;
  meta.step = call.step;
  meta.rank = rank;
  meta.schema = schema_text(call.handle ? &*call.handle : nullptr, meta.name);
  meta.inputs = inputs.tensors;
  meta.state = call.phase == Phase::kForward ? call.state : call.forward->state();
  meta.stack = call.stack;
  meta.module = call.module;
  meta.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();

  size_t bytes = inputs.bytes;
  bool overwritten = false;
  for (const VersionedTensor& output : call.outputs)
    overwritten |= output.tensor().defined() && !output.is_what_it_was();
  auto output = call.outputs.begin();
  const Value result = values(call.result, output);
  if (call.phase == Phase::kBackward) {
    const Snapshot grad_inputs = take_snapshot(result, "");
    auto gradient = call.inputs.begin();
    const Snapshot grad_outputs = take_snapshot(values(call.args, gradient), "");
    write(CallFile::kGradInputs, call_file(call.op, call.id, grad_inputs.value, make_dict({})));
    write(CallFile::kGradOutputs, call_file(call.op, call.id, grad_outputs.value, make_dict({})));
    bytes += grad_inputs.bytes + grad_outputs.bytes;
  } else if (!overwritten) {
    std::vector<std::pair<Value, Value>> changed, beside;
    for (const auto& [index, place] : call.written) {
      changed.emplace_back(static_cast<int64_t>(index), call.outputs[place].tensor());
    }
    // One snapshot: a result which is a changed input is stored once.
    const Snapshot outputs = take_snapshot(make_tuple({result, make_dict(std::move(changed))}), "", /*owned=*/false,
                                           /*restride=*/false);
    const Values& out = *sequence_items(outputs.value);
    if (!call.written.empty()) beside.emplace_back("mutated", out[1]);
    write(CallFile::kOutput, call_file(call.op, call.id, make_tuple({out[0]}), make_dict({}), std::move(beside)));
    meta.outputs = outputs.tensors;
    bytes += outputs.bytes;
  }
  store_->write_text(key, CallFile::kMeta, 0, meta.to_json());
  store_->flush();
  ++saved_[{call.op, call.phase}];
  bytes_left_ -= static_cast<int64_t>(bytes);
  return path.substr(0, path.rfind('/'));
}

}  // namespace op_tools
