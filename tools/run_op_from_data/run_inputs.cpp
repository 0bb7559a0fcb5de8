#include "run_op_from_data/run_inputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "compare/memory_beside.h"
#include "compare/saved_facts.h"
#include "fallback/moved_tensors.h"
#include "hooks/op_traits.h"
#include "pth/pth.h"
#include "tensor/plain_tensor.h"
#include "tensor/tensor_bits.h"

namespace op_tools::replay {
namespace {

using torch::autograd::variable_list;

// The tensor with its original strides again, over memory of zeros that is large enough.
at::Tensor spread(const at::Tensor& tensor, const std::vector<int64_t>& strides) {
  if (strides.size() != static_cast<size_t>(tensor.dim())) {
    throw Error("'restrided' has " + std::to_string(strides.size()) + " strides for a tensor of " +
                std::to_string(tensor.dim()) + " dimensions");
  }
  int64_t span = tensor.numel() > 0 ? 1 : 0;
  for (size_t i = 0; i < strides.size() && span > 0; ++i) {
    const int64_t extent = tensor.size(static_cast<int64_t>(i)) - 1;
    int64_t reach = 0;
    if (strides[i] < 0 || __builtin_mul_overflow(extent, strides[i], &reach) ||
        __builtin_add_overflow(span, reach, &span)) {
      throw Error("'restrided' has strides that no tensor can have");
    }
  }
  // A file of a few bytes may claim any strides: its demand for memory must stay within reason.
  constexpr int64_t kMostBytes = int64_t{8} << 30;
  if (span > kMostBytes / static_cast<int64_t>(tensor.itemsize())) {
    throw Error("'restrided' asks for a tensor that spans more than 8 GiB");
  }
  at::Tensor memory = at::zeros({span}, tensor.options().requires_grad(false));
  at::Tensor copy = memory.as_strided(tensor.sizes(), strides);
  copy.copy_(tensor.detach());
  copy = copy.detach();
  copy.set_requires_grad(tensor.requires_grad());
  return copy;
}

// Fresh copies of the tensors of a file, each on its device.
class Copies {
 public:
  explicit Copies(const InputPlan& plan) : plan_(plan) {}

  // `index`: of the tensor in (args, kwargs); none for tensors that occur in the aten call only.
  void add(const at::Tensor& tensor, std::optional<size_t> index) {
    const auto [entry, is_new] = sources_.try_emplace(tensor.unsafeGetTensorImpl());
    if (!is_new) return;
    const c10::Device device =
        index && *index < plan_.devices.size() ? plan_.devices[*index] : plan_.move_device(tensor.device());
    const auto strides = index ? plan_.restrided.find(*index) : plan_.restrided.end();
    entry->second.tensor = strides == plan_.restrided.end() ? tensor : spread(tensor, strides->second);
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].device == device) entry->second.group = i;
    }
    if (groups_.empty() || groups_[entry->second.group].device != device) {
      entry->second.group = groups_.size();
      groups_.push_back({device, {}, nullptr});
    }
    groups_[entry->second.group].tensors.push_back(entry->second.tensor);
  }

  void make() {
    for (Group& group : groups_) {
      const Target target{.device = group.device, .cast = nullptr, .fresh = true};
      group.moved = std::make_unique<MovedTensors>(group.tensors, target, GradientsGo::kToEdges);
    }
  }

  at::Tensor of(const at::Tensor& tensor) const {
    const Source& source = sources_.at(tensor.unsafeGetTensorImpl());
    return groups_[source.group].moved->copy_of(source.tensor);
  }
  GradientEdge edge_of(const at::Tensor& tensor) const {
    const Source& source = sources_.at(tensor.unsafeGetTensorImpl());
    return groups_[source.group].moved->edge_of(of(tensor));
  }

 private:
  struct Source {
    at::Tensor tensor;
    size_t group = 0;
  };
  struct Group {
    c10::Device device;
    std::vector<at::Tensor> tensors;
    std::unique_ptr<MovedTensors> moved;
  };
  const InputPlan& plan_;
  std::unordered_map<const c10::TensorImpl*, Source> sources_;
  std::vector<Group> groups_;
};

Value map_devices(const Value& value, const std::function<c10::Device(c10::Device)>& move) {
  const auto mapped = [&](const Values& items) {
    Values result;
    result.reserve(items.size());
    for (const Value& item : items) result.push_back(map_devices(item, move));
    return result;
  };
  if (const auto* device = value.get_if<c10::Device>()) return move(*device);
  if (const auto* list = value.get_if<List>()) return make_list(mapped(*list->items));
  if (const auto* tuple = value.get_if<Tuple>()) return make_tuple(mapped(*tuple->items));
  if (const auto* dict = value.get_if<Dict>()) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key, item] : *dict->items) {
      const auto* name = key.get_if<std::string>();
      const auto* text = item.get_if<std::string>();
      const bool is_device = name && text && *name == "device";  // device="cuda", as users write it
      items.emplace_back(key, is_device ? Value(move(recorded_device(*text))) : map_devices(item, move));
    }
    return make_dict(std::move(items));
  }
  return value;
}

Value with_device(const Value& kwargs, c10::Device device) {
  std::vector<std::pair<Value, Value>> items;
  if (const auto* dict = kwargs.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) {
      const auto* name = key.get_if<std::string>();
      if (!name || *name != "device") items.emplace_back(key, item);
    }
  }
  items.emplace_back(std::string("device"), device);
  return make_dict(std::move(items));
}

struct CopyGradients final : torch::autograd::FunctionPostHook {
  explicit CopyGradients(std::shared_ptr<std::vector<at::Tensor>> target) : target(std::move(target)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    *target = outputs;
    return outputs;
  }
  std::shared_ptr<std::vector<at::Tensor>> target;
};

}  // namespace

bool leaves_device_open(std::string_view name, const Value& args, const Value& kwargs) {
  if (!is_torchs_own(name) || !has_trait(base_name(name), OpTrait::kOnDefaultDevice)) return false;
  for (const std::string_view key : {"device", "out"}) {
    const Value* value = find_key(kwargs, key);
    if (value && !value->is<None>()) return false;
  }
  const Values* items = sequence_items(args);
  constexpr size_t kDevicePlace = 2;  // torch.as_tensor(data, dtype, device)
  if (!items || items->size() <= kDevicePlace) return true;
  const Value& third = (*items)[kDevicePlace];
  return !third.is<c10::Device>() && !third.is<std::string>();
}

// A program that had tensors on an accelerator has some on the CPU on purpose; a program that had all on the CPU is
// moved as a whole.
InputPlan plan_for(const SavedCall& call, c10::Device device) {
  std::vector<c10::Device> recorded;
  for (const TensorMeta& input : call.meta.inputs) recorded.push_back(input.device);
  const bool stay_on_cpu =
      std::any_of(recorded.begin(), recorded.end(), [](c10::Device d) { return !d.is_cpu() && !d.is_meta(); });
  InputPlan plan;
  plan.restrided = call.restrided;
  plan.move_device = [=](c10::Device from) { return from.is_meta() || (stay_on_cpu && from.is_cpu()) ? from : device; };
  for (const c10::Device from : recorded) {
    // The files hold all tensors on the CPU: "meta" tensors have no data, and are not changed.
    plan.devices.push_back(plan.move_device(from));
  }
  // An aten call has the tensors of which as_tensor makes its own.
  if (call.aten.is<None>() && leaves_device_open(call.name, call.args, call.kwargs)) {
    plan.default_device = call.meta.outputs.empty() ? device : plan.move_device(call.meta.outputs.front().device);
  }
  return plan;
}

RunInputs make_inputs(const SavedCall& call, const InputPlan& plan) {
  Copies copies(plan);
  std::vector<at::Tensor> originals = flatten_tensors(call.args);
  for (const at::Tensor& tensor : flatten_tensors(call.kwargs)) originals.push_back(tensor);
  for (size_t i = 0; i < originals.size(); ++i) copies.add(originals[i], i);
  for_each_tensor(call.aten, [&](const at::Tensor& tensor) { copies.add(tensor, std::nullopt); });
  copies.make();

  RunInputs inputs;
  for (const at::Tensor& tensor : originals) {
    inputs.tensors.push_back(copies.of(tensor));
    inputs.edges.push_back(copies.edge_of(tensor));
  }
  const auto copied = [&](const Value& value) {
    return map_devices(map_tensors(value, [&](const at::Tensor& tensor) -> Value { return copies.of(tensor); }),
                       plan.move_device);
  };
  inputs.args = copied(call.args);
  inputs.kwargs = copied(call.kwargs);
  inputs.aten = copied(call.aten);
  if (plan.default_device) inputs.kwargs = with_device(inputs.kwargs, *plan.default_device);
  return inputs;
}

std::vector<bool> written_in_room(const SavedCall& call) {
  const std::string_view base = base_name(call.name);
  const bool sees_storage = has_trait(base, OpTrait::kUninitializedResult) || base == "set_" || base == "set_data" ||
                            base == "_resize_output_";
  if (sees_storage || is_graph_call(call.name) || is_collective(call.name)) return {};
  std::vector<bool> written;
  if (!call.judged.is<None>()) {
    CallFacts facts;
    read_facts(call.judged, facts);
    written = facts.memory.written_inputs;
  }
  if (!call.output) return written;
  for (const auto& [index, value] : call.output->mutated) {
    if (index >= written.size()) written.resize(index + 1);
    written[index] = true;
  }
  return written;
}

void give_room(const RunInputs& inputs, const std::vector<bool>& written) {
  constexpr int64_t kRoom = MemoryBeside::kBytes;
  constexpr uint8_t kPattern = 0xA5;
  for (size_t i = 0; i < inputs.tensors.size() && i < written.size(); ++i) {
    const at::Tensor& tensor = inputs.tensors[i];
    std::string type;
    if (!written[i] || tensor.layout() != at::kStrided || !why_not_plain(tensor, &type).empty()) continue;
    if (!tensor.has_storage() || tensor.numel() == 0 || tensor._is_zerotensor()) continue;
    const auto own = static_cast<int64_t>(storage_bytes(tensor)), item = static_cast<int64_t>(tensor.itemsize());
    // Of the tensor's dtype, as the program's would be of which this is a part.
    const at::Tensor memory =
        at::empty({(own + 2 * kRoom + item - 1) / item}, tensor.options().requires_grad(false)).detach();
    at::Tensor bytes = bytes_of_storage(memory, {0, own + 2 * kRoom});
    bytes.narrow(0, 0, kRoom).fill_(kPattern);
    bytes.narrow(0, kRoom, own).copy_(bytes_of_storage(tensor, {0, own}));
    bytes.narrow(0, kRoom + own, kRoom).fill_(kPattern);
    // A device that copies bytes wrong would get other inputs than the program's.
    if (!same_bits(bytes.narrow(0, kRoom, own), bytes_of_storage(tensor, {0, own}))) continue;
    const c10::Storage before = tensor.storage();
    const auto move = [&](const at::Tensor& other) {
      if (!other.defined() || !other.has_storage() || !other.storage().is_alias_of(before)) return;
      c10::TensorImpl& impl = *other.unsafeGetTensorImpl();
      const int64_t offset = other.storage_offset() + kRoom / static_cast<int64_t>(other.itemsize());
      impl.set_storage_keep_dtype(memory.storage());
      impl.set_storage_offset(offset);
    };
    for (const at::Tensor& other : inputs.tensors) move(other);
    for_each_tensor(inputs.aten, move);
  }
}

std::vector<at::Tensor> last_node_gradients(const std::vector<at::Tensor>& outputs,
                                            const std::vector<at::Tensor>& grads,
                                            const std::vector<GradientEdge>& edges, bool keep_graph) {
  const auto arrived = std::make_shared<std::vector<at::Tensor>>();
  for (size_t i = 0; i < outputs.size() && i < grads.size(); ++i) {
    if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
    const auto edge = torch::autograd::impl::gradient_edge(outputs[i]);
    edge.function->add_post_hook(std::make_unique<CopyGradients>(arrived));
    gradients_at(edges, outputs, grads, keep_graph);
    break;
  }
  return *arrived;
}

}  // namespace op_tools::replay
