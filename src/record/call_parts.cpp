#include "record/call_parts.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "report/json_writer.h"

namespace op_tools {
namespace {

constexpr size_t kMostBytes = 4096;
constexpr std::string_view kOwn = "self.";  // no keyword begins so: parameters and buffers of a module

// Those of a slice, too, in the order of for_each_tensor.
const Values* parts_of(const Value& value) {
  const auto* slice = value.get_if<Slice>();
  return slice ? slice->items.get() : sequence_items(value);
}

bool has_tensor(const Value& value) {
  if (value.is<at::Tensor>()) return true;
  if (const Values* items = parts_of(value)) return std::any_of(items->begin(), items->end(), &has_tensor);
  const auto* dict = value.get_if<Dict>();
  return dict && std::any_of(dict->items->begin(), dict->items->end(),
                             [](const auto& item) { return has_tensor(item.second); });
}

// Addresses of objects are in no row: they differ from run to run.
Value shown(const Value& value) {
  if (const auto* other = value.get_if<Unsupported>()) {
    // Process groups and reductions have a name: it stands before why they have no form
    // (op_tools/_torch/object_forms.py).
    const bool has_name = other->type.ends_with("ProcessGroup") || other->type.find("ReduceOp") != std::string::npos;
    return has_name ? other->why.substr(0, other->why.find(": ")) : other->type;
  }
  if (value.is<Generator>()) return "Generator";
  return value;
}

}  // namespace

bool PlacedTensor::is_own() const {
  return place.starts_with(kOwn);
}

void CallParts::add_arguments(const Value& args, const Value& kwargs) {
  std::string place = "args";
  const Values* const items = sequence_items(args);
  for (size_t i = 0; items && i < items->size(); ++i) {
    place.resize(4);
    place.append("[").append(std::to_string(i)).append("]");
    add((*items)[i], place);
  }
  const auto* dict = kwargs.get_if<Dict>();
  if (!dict) return;
  for (const auto& [key, value] : *dict->items) {
    const auto* name = key.get_if<std::string>();
    const bool is_own = name && name->starts_with(kOwn);
    place = (is_own ? "" : "kwargs.") + (name ? *name : describe(key));
    add(value, place);
  }
}

void CallParts::add_result(const Value& result) {
  std::string place = "result";
  add(result, place);
  scalars_.clear();  // numbers are values, too: result_numbers.h
}

void CallParts::add(const Value& value, std::string& place) {
  if (value.is<None>()) return;
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    tensors_.push_back({place, *tensor});
    return;
  }
  const size_t length = place.size();
  if (has_tensor(value)) {
    if (const Values* items = parts_of(value)) {
      for (size_t i = 0; i < items->size(); ++i) {
        place.append("[").append(std::to_string(i)).append("]");
        add((*items)[i], place);
        place.resize(length);
      }
    } else if (const auto* dict = value.get_if<Dict>()) {
      for (const auto& [key, item] : *dict->items) {
        const auto* name = key.get_if<std::string>();
        place.append(".").append(name ? *name : describe(key));
        add(item, place);
        place.resize(length);
      }
    }
    return;
  }
  scalars_.append(scalars_.empty() ? "\"" : ",\"").append(place).append("\":");
  if (const auto* number = value.get_if<int64_t>()) {  // most are; else a flag
    scalars_ += std::to_string(*number);
  } else if (const auto* flag = value.get_if<bool>()) {
    scalars_ += *flag ? "true" : "false";
  } else {
    scalars_ += json_text(shown(value));
  }
}

void CallParts::add_text(const std::string& name, const std::string& text) {
  std::string place = name;
  add(text, place);
}

std::string CallParts::scalars() const {
  if (scalars_.empty()) return {};
  if (scalars_.size() <= kMostBytes) return "{" + scalars_ + "}";
  return "{\"bytes\":" + std::to_string(scalars_.size()) + ",\"hash\":\"" +
         std::to_string(std::hash<std::string>()(scalars_)) + "\"}";
}

}  // namespace op_tools
