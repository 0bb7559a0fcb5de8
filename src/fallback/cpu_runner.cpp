#include "fallback/cpu_runner.h"

#include <utility>

#include "fallback/random_stream.h"

namespace op_tools {
namespace {

std::vector<at::Tensor> all_tensors(const Value& args, const Value& kwargs) {
  std::vector<at::Tensor> tensors = flatten_tensors(args);
  for (const at::Tensor& tensor : flatten_tensors(kwargs)) tensors.push_back(tensor);
  return tensors;
}

// Does a string among the arguments name this device ("cuda", "cuda:0")?
bool names_device(const std::string& text, c10::Device device) {
  const std::string type = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  return text == type || text == device.str() ||
         (!device.has_index() && text.compare(0, type.size() + 1, type + ":") == 0);
}

}  // namespace

Value map_leaves(const Value& value, const std::function<Value(const Value&)>& visit) {
  const auto mapped = [&](const Values& items) {
    Values result;
    result.reserve(items.size());
    for (const Value& item : items) result.push_back(map_leaves(item, visit));
    return result;
  };
  if (const auto* list = value.get_if<List>()) return make_list(mapped(*list->items));
  if (const auto* tuple = value.get_if<Tuple>()) return make_tuple(mapped(*tuple->items));
  if (const auto* named = value.get_if<NamedTuple>()) {
    return NamedTuple{std::make_shared<const Values>(mapped(*named->items)), named->type};
  }
  if (const auto* slice = value.get_if<Slice>()) {
    return Slice{std::make_shared<const Values>(mapped(*slice->items))};
  }
  if (const auto* set = value.get_if<Set>()) return Set{std::make_shared<const Values>(mapped(*set->items))};
  if (const auto* dict = value.get_if<Dict>()) {
    std::vector<std::pair<Value, Value>> items;
    items.reserve(dict->items->size());
    for (const auto& [key, item] : *dict->items) items.emplace_back(key, map_leaves(item, visit));
    return make_dict(std::move(items));
  }
  return visit(value);
}

MovedCall::MovedCall(const Value& args, const Value& kwargs, const Target& target)
    : moved_(all_tensors(args, kwargs), target, GradientsGo::kToEdges) {
  std::optional<c10::Device> from;
  const bool to_a_single_device = !target.device_of;  // else arguments that name a device mean it
  if (const auto device = device_of(all_tensors(args, kwargs));
      to_a_single_device && device && *device != target.device)
    from = device;
  const auto visit = [&](const Value& value) -> Value {
    if (const auto* tensor = value.get_if<at::Tensor>()) {
      tensors_.push_back(moved_.copy_of(*tensor));
      edges_.push_back(moved_.edge_of(tensors_.back()));
      return tensors_.back();
    }
    if (const auto* dtype = value.get_if<at::ScalarType>(); dtype && target.cast) return target.cast(*dtype);
    if (const auto* device = value.get_if<c10::Device>(); device && from && is_same_device(*device, *from)) {
      return target.device;
    }
    if (const auto* text = value.get_if<std::string>(); text && from && names_device(*text, *from)) {
      return target.device;
    }
    if (const auto* generator = value.get_if<Generator>();
        generator && to_a_single_device && target.device.is_cpu() && !generator->device.is_cpu()) {
      return Generator{target.device, cpu_state_from(generator->state)};
    }
    return value;
  };
  args_ = map_leaves(args, visit);
  kwargs_ = map_leaves(kwargs, visit);
}

std::vector<at::Tensor> MovedCall::gradients(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& output_gradients, bool keep_graph) const {
  return gradients_at(edges_, outputs, output_gradients, keep_graph);
}

bool is_same_device(c10::Device named, c10::Device device) {
  return named.type() == device.type() && (!named.has_index() || !device.has_index() || named == device);
}

std::optional<c10::Device> device_of(const std::vector<at::Tensor>& tensors) {
  c10::Device device(c10::kCPU);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.device().is_cpu()) continue;
    if (!device.is_cpu() && tensor.device() != device) return std::nullopt;
    device = tensor.device();
  }
  return device;
}

}  // namespace op_tools
