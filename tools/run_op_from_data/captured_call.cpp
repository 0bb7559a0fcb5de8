#include "run_op_from_data/captured_call.h"

#include <string>

#include "base/error.h"
#include "compare/saved_facts.h"

namespace op_tools::replay {
namespace {

void find_unsupported(const Value& value, std::vector<std::string>* names) {
  if (const auto* unsupported = value.get_if<Unsupported>()) {
    names->push_back(unsupported->type + " (" + unsupported->why + ")");
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) find_unsupported(item, names);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) find_unsupported(item, names);
  }
}

}  // namespace

c10::Device device_of(const SavedCall& call) {
  c10::Device device(c10::kCPU);
  for (const TensorMeta& input : call.meta.inputs) {
    if (!input.device.is_cpu()) device = input.device;
  }
  return device;
}

Level level_of(const SavedCall& call) {
  return call.has_meta ? call.meta.level : Level::kTorch;
}

std::optional<c10::ScalarType> autocast_of(const SavedCall& call) {
  if (level_of(call) == Level::kAten) return std::nullopt;
  for (const Autocast& autocast : call.meta.state.autocast) {
    if (autocast.device == device_of(call).type()) return autocast.dtype;
  }
  return std::nullopt;
}

Tensors gradient_list(const Value& gradients) {
  Tensors tensors;
  for (const Value& item : *sequence_items(gradients)) {
    const auto* tensor = item.get_if<at::Tensor>();
    tensors.push_back(tensor ? tensor->detach() : at::Tensor());
  }
  return tensors;
}

void refuse_unsupported(const SavedCall& call) {
  std::vector<std::string> missing;
  for (const Note& note : call.meta.unsupported) {
    if (!note.where.starts_with("args") && !note.where.starts_with("kwargs")) continue;  // of the result
    missing.push_back(note.where + ": " + note.type + " (" + note.why + ")");
  }
  if (missing.empty()) {
    find_unsupported(call.args, &missing);
    find_unsupported(call.kwargs, &missing);
  }
  if (missing.empty()) return;
  std::string text = "an input could not be saved when the call was captured: ";
  for (size_t i = 0; i < missing.size(); ++i) text += (i ? "; " : "") + missing[i];
  throw Error(text);
}

}  // namespace op_tools::replay
