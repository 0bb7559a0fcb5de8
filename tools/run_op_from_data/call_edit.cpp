#include "run_op_from_data/call_edit.h"

#include <ATen/ops/max.h>
#include <ATen/ops/remainder.h>

#include <map>
#include <string>
#include <utility>

#include "fallback/cpu_runner.h"

namespace op_tools::replay {
namespace {

void forget_result(SavedCall& call) {
  call.output.reset();
  call.meta_text.clear();
  call.meta.outputs.clear();
  call.has_meta = true;
}

// Facts by tensor index, after arguments were left out of `before`: a tensor has those that it had.
void renumber(const SavedCall& before, SavedCall& now) {
  std::map<const void*, size_t> old;
  const auto tensors = argument_tensors(before);
  for (size_t i = 0; i < tensors.size(); ++i) old.emplace(tensors[i].unsafeGetTensorImpl(), i);
  std::vector<size_t> from;
  for (const at::Tensor& tensor : argument_tensors(now)) from.push_back(old.at(tensor.unsafeGetTensorImpl()));
  const auto pick = [&](const auto& items) {
    std::decay_t<decltype(items)> picked;
    for (const size_t i : from) {
      if (i < items.size()) picked.push_back(items[i]);
    }
    return picked;
  };
  now.meta.inputs = pick(before.meta.inputs);
  now.restrided.clear();
  for (size_t i = 0; i < from.size(); ++i) {
    if (const auto entry = before.restrided.find(from[i]); entry != before.restrided.end()) {
      now.restrided.emplace(i, entry->second);
    }
  }
  const auto* judged = now.judged.get_if<Dict>();
  if (!judged) return;
  auto items = *judged->items;
  for (auto& [key, value] : items) {
    const auto* name = key.get_if<std::string>();
    const Values* written = sequence_items(value);
    if (name && *name == "written_inputs" && written && !written->empty()) value = make_list(pick(*written));
  }
  now.judged = make_dict(std::move(items));
}

Value with_integers(const Value& value, int64_t from, int64_t to) {
  return map_leaves(value, [=](const Value& leaf) -> Value {
    if (const auto* number = leaf.get_if<int64_t>(); number && *number == from) return to;
    if (const auto* size = leaf.get_if<Size>()) {
      Size changed = *size;
      for (int64_t& length : changed.sizes) length = length == from ? to : length;
      return changed;
    }
    return leaf;
  });
}

// `gradients`: whether tensors that required a gradient do so afterwards.
SavedCall mapped(const SavedCall& call, const std::function<at::Tensor(const at::Tensor&)>& change, bool gradients) {
  SavedCall changed = call;
  std::map<const void*, at::Tensor> copies;
  const auto visit = [&](const at::Tensor& tensor) -> Value {
    const auto [place, is_new] = copies.try_emplace(tensor.unsafeGetTensorImpl());
    if (is_new) {
      at::Tensor now = change(tensor);
      if (!now.is_same(tensor)) now = now.detach().set_requires_grad(gradients && tensor.requires_grad());
      place->second = std::move(now);
    }
    return place->second;
  };
  changed.args = map_tensors(call.args, visit);
  changed.kwargs = map_tensors(call.kwargs, visit);
  changed.aten = map_tensors(call.aten, visit);
  const auto before = argument_tensors(call), now = argument_tensors(changed);
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i].is_same(before[i])) continue;
    changed.restrided.erase(i);
    if (i >= changed.meta.inputs.size()) continue;
    TensorMeta meta = TensorMeta::of(now[i]);
    meta.device = changed.meta.inputs[i].device;
    meta.is_leaf = changed.meta.inputs[i].is_leaf;
    meta.requires_grad = gradients && changed.meta.inputs[i].requires_grad;
    changed.meta.inputs[i] = std::move(meta);
  }
  forget_result(changed);
  return changed;
}

}  // namespace

std::vector<at::Tensor> argument_tensors(const SavedCall& call) {
  std::vector<at::Tensor> tensors = flatten_tensors(call.args);
  for (const at::Tensor& tensor : flatten_tensors(call.kwargs)) tensors.push_back(tensor);
  return tensors;
}

SavedCall with_tensors(const SavedCall& call, const std::function<at::Tensor(const at::Tensor&)>& change) {
  return mapped(call, change, /*gradients=*/true);
}

SavedCall with_numbers(const SavedCall& call, int64_t from, int64_t to) {
  SavedCall changed = with_tensors(call, [=](const at::Tensor& tensor) {
    if (!c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) || tensor.numel() == 0) return tensor;
    const auto most = at::max(tensor).item<int64_t>();
    return most >= to && most < from ? at::remainder(tensor, to) : tensor;
  });
  changed.args = with_integers(changed.args, from, to);
  changed.kwargs = with_integers(changed.kwargs, from, to);
  changed.aten = with_integers(changed.aten, from, to);
  return changed;
}

SavedCall without_keyword(const SavedCall& call, std::string_view name) {
  SavedCall changed = call;
  std::vector<std::pair<Value, Value>> items;
  for (const auto& item : *call.kwargs.get_if<Dict>()->items) {
    const auto* key = item.first.get_if<std::string>();
    if (!key || *key != name) items.push_back(item);
  }
  changed.kwargs = make_dict(std::move(items));
  renumber(call, changed);
  forget_result(changed);
  return changed;
}

SavedCall without_last_argument(const SavedCall& call) {
  SavedCall changed = call;
  Values items = *sequence_items(call.args);
  items.pop_back();
  changed.args = make_tuple(std::move(items));
  renumber(call, changed);
  forget_result(changed);
  return changed;
}

SavedCall forward_alone(const SavedCall& call) {
  SavedCall changed = mapped(
      call, [](const at::Tensor& tensor) { return tensor.detach(); }, /*gradients=*/false);
  changed.backward.clear();
  return changed;
}

}  // namespace op_tools::replay
