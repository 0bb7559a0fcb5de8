#include "timing/call_details.h"

#include <ATen/ops/empty_strided_ops.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

void append_shape(std::string& text, const at::Tensor& tensor) {
  if (tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    text += "[]";
    return;
  }
  text += '[';
  const at::IntArrayRef sizes = own_sizes(tensor);
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  text += ']';
}

// How many values a tree has, counted up to a limit: a list of a million numbers is no sample to store.
size_t size_of(const Value& value, size_t limit) {
  size_t size = 1;
  if (const Values* items = sequence_items(value)) {
    if (items->size() > limit) return limit + 1;
    for (size_t i = 0; i < items->size() && size <= limit; ++i) size += size_of((*items)[i], limit);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& item : *dict->items) size += size_of(item.second, limit);
  }
  return size;
}

// The arguments with their tensors as meta tensors: the form that formulas need.
Value sample_of(OpCall& call) {
  constexpr size_t kMost = 256;
  Value values = make_tuple({call.args(), call.kwargs()});
  if (size_of(values, kMost) > kMost || first_unsupported(values)) return {};
  bool plain = true;
  Value sample = map_tensors(values, [&](const at::Tensor& tensor) -> Value {
    if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_quantized() ||
        tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      plain = false;
      return {};
    }
    return at::_ops::empty_strided::call(c10::fromIntArrayRefSlow(own_sizes(tensor)),
                                         c10::fromIntArrayRefSlow(own_strides(tensor)), tensor.scalar_type(),
                                         at::kStrided, c10::Device(c10::kMeta), std::nullopt);
  });
  return plain ? sample : Value();
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

}  // namespace

std::string names_of(const CallDevices& devices) {
  std::vector<std::string> names;
  for (const c10::Device device : devices) names.push_back(device.str());
  return names.empty() ? "cpu" : joined(names);
}

CallDetails describe_call(OpCall& call, const CallDevices& devices) {
  CallDetails details;
  std::vector<std::string> dtypes;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    if (!details.shapes.empty()) details.shapes += ", ";
    append_shape(details.shapes, tensor);
    std::string name = torch_name(tensor.scalar_type());
    name.erase(0, name.rfind('.') + 1);
    if (std::find(dtypes.begin(), dtypes.end(), name) == dtypes.end()) dtypes.push_back(std::move(name));
  });
  details.shapes = "[" + details.shapes + "]";
  details.dtypes = joined(dtypes);
  details.device = names_of(devices);
  details.sample = sample_of(call);
  return details;
}

std::string values_text(OpCall& call) {
  std::vector<std::pair<Value, Value>> inputs = {{"args", call.args()}};
  const auto* kwargs = call.kwargs().get_if<Dict>();
  if (kwargs && !kwargs->items->empty()) inputs.emplace_back("kwargs", call.kwargs());
  return "     input: " + describe(make_dict(std::move(inputs))) +
         " output: " + describe(make_dict({{"args", make_tuple({call.result()})}}));
}

}  // namespace op_tools
