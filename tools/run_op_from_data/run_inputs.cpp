#include "run_op_from_data/run_inputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "hooks/error.h"

namespace op_tools::replay {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Stands for whatever made an input in the program. Nothing lies behind it, so its gradient goes no
// further.
struct InputNode final : Node {
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "ReplayInput"; }
};

// Nodes are intrusive since torch 2.13, shared before.
template <class Pointer>
Pointer make_input_node() {
  if constexpr (std::is_constructible_v<Pointer, std::shared_ptr<Node>>) {
    return Pointer(std::make_shared<InputNode>());
  } else {
    return c10::make_intrusive<InputNode>();
  }
}

// Copies of the tensors of a file, sharing among the copies what the tensors share.
class Copier {
 public:
  explicit Copier(const InputPlan& plan) : plan_(plan) {}

  // `index`: of the tensor in (args, kwargs); none for tensors that occur in the aten call only.
  at::Tensor copy(const at::Tensor& tensor, std::optional<size_t> index) {
    const auto known = tensors_.find(tensor.unsafeGetTensorImpl());
    if (known != tensors_.end()) return known->second;
    const c10::Device device =
        index && *index < plan_.devices.size() ? plan_.devices[*index] : plan_.move_device(tensor.device());
    at::Tensor made;
    if (const auto strides = index ? plan_.restrided.find(*index) : plan_.restrided.end();
        strides != plan_.restrided.end()) {
      made = spread(tensor, strides->second, device);
    } else if (tensor.layout() != at::kStrided || tensor.is_meta()) {
      made = tensor.detach().clone().to(device);
    } else {
      made = at::empty({0}, tensor.options().device(device).requires_grad(false));
      made.set_(storage(tensor, device), tensor.storage_offset(), tensor.sizes(), tensor.strides());
      if (tensor.is_conj()) made._set_conj(true);
      if (tensor.is_neg()) made._set_neg(true);
    }
    tensors_.emplace(tensor.unsafeGetTensorImpl(), made);
    if (tensor.requires_grad()) join_graph(made);
    return made;
  }

  Edge edge_of(const at::Tensor& made) const {
    const auto found = edges_.find(made.unsafeGetTensorImpl());
    return found == edges_.end() ? Edge() : found->second;
  }

 private:
  struct Copy {
    const c10::StorageImpl* original;
    c10::Device device;
    at::Storage storage;
  };

  // A storage is copied as bytes, once, so that tensors of several dtypes and shapes may share it.
  at::Storage storage(const at::Tensor& tensor, c10::Device device) {
    const c10::StorageImpl* original = tensor.storage().unsafeGetStorageImpl();
    for (const Copy& copy : copies_) {
      if (copy.original == original && copy.device == device) return copy.storage;
    }
    at::Tensor bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte));
    bytes.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
    const at::Storage made = (device.is_cpu() ? bytes.clone() : bytes.to(device)).storage();
    copies_.push_back({original, device, made});
    return made;
  }

  // The tensor with its original strides again, over memory of zeros that is large enough.
  static at::Tensor spread(const at::Tensor& tensor, const std::vector<int64_t>& strides, c10::Device device) {
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
    // A file of a few bytes may claim any strides: what it makes us allocate must stay within reason.
    constexpr int64_t kMostBytes = int64_t{8} << 30;
    if (span > kMostBytes / static_cast<int64_t>(tensor.itemsize())) {
      throw Error("'restrided' asks for a tensor that spans more than 8 GiB");
    }
    at::Tensor memory = at::zeros({span}, tensor.options().device(device).requires_grad(false));
    at::Tensor made = at::empty({0}, memory.options());
    made.set_(memory.storage(), 0, tensor.sizes(), strides);
    made.copy_(tensor.detach());
    return made;
  }

  void join_graph(at::Tensor& made) {
    const auto node = make_input_node<decltype(Edge::function)>();
    const Edge edge(node, node->add_input_metadata(made));
    torch::autograd::impl::set_gradient_edge(made, edge);
    edges_.emplace(made.unsafeGetTensorImpl(), edge);
  }

  const InputPlan& plan_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
  std::vector<Copy> copies_;
  std::unordered_map<const c10::TensorImpl*, Edge> edges_;
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
    for (const auto& [key, item] : *dict->items) items.emplace_back(key, map_devices(item, move));
    return make_dict(std::move(items));
  }
  return value;
}

// The roots of a backward pass: outputs with history to which a gradient arrived.
struct Roots {
  torch::autograd::edge_list edges;
  variable_list gradients;

  Roots(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads) {
    for (size_t i = 0; i < outputs.size() && i < grads.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      edges.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
      gradients.push_back(grads[i].to(outputs[i].device()));
    }
  }
};

std::vector<at::Tensor> run_engine(const Roots& roots, const RunInputs& inputs, bool keep_graph) {
  std::vector<at::Tensor> result(inputs.edges.size());
  torch::autograd::edge_list wanted;
  for (const Edge& edge : inputs.edges) {
    if (edge.is_valid()) wanted.push_back(edge);
  }
  if (roots.edges.empty() || wanted.empty()) return result;
  const variable_list arrived = torch::autograd::Engine::get_default_engine().execute(
      roots.edges, roots.gradients, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  size_t next = 0;
  for (size_t i = 0; i < inputs.edges.size(); ++i) {
    if (inputs.edges[i].is_valid()) result[i] = arrived[next++];
  }
  return result;
}

struct KeepGradients final : torch::autograd::FunctionPostHook {
  explicit KeepGradients(std::shared_ptr<std::vector<at::Tensor>> kept) : kept(std::move(kept)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    *kept = outputs;
    return outputs;
  }
  std::shared_ptr<std::vector<at::Tensor>> kept;
};

}  // namespace

RunInputs make_inputs(const Value& args, const Value& kwargs, const Value& aten, const InputPlan& plan) {
  Copier copier(plan);
  RunInputs inputs;
  const auto copied = [&](const Value& value) {
    return map_tensors(value, [&](const at::Tensor& tensor) -> Value {
      inputs.tensors.push_back(copier.copy(tensor, inputs.tensors.size()));
      return inputs.tensors.back();
    });
  };
  // One after the other: the order defines the tensors' indices.
  inputs.args = map_devices(copied(args), plan.move_device);
  inputs.kwargs = map_devices(copied(kwargs), plan.move_device);
  inputs.aten = map_devices(
      map_tensors(aten, [&](const at::Tensor& tensor) -> Value { return copier.copy(tensor, std::nullopt); }),
      plan.move_device);
  for (const at::Tensor& tensor : inputs.tensors) inputs.edges.push_back(copier.edge_of(tensor));
  return inputs;
}

std::vector<at::Tensor> input_gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads,
                                        const RunInputs& inputs, bool keep_graph) {
  return run_engine(Roots(outputs, grads), inputs, keep_graph);
}

std::vector<at::Tensor> last_node_gradients(const std::vector<at::Tensor>& outputs,
                                            const std::vector<at::Tensor>& grads, const RunInputs& inputs,
                                            bool keep_graph) {
  const Roots roots(outputs, grads);
  if (roots.edges.empty()) return {};
  const auto kept = std::make_shared<std::vector<at::Tensor>>();
  roots.edges[0].function->add_post_hook(std::make_unique<KeepGradients>(kept));
  run_engine(roots, inputs, keep_graph);
  return *kept;
}

}  // namespace op_tools::replay
