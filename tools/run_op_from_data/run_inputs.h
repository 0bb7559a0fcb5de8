// The tensors of one run of a captured call: private copies on the device of the run, aliasing and
// strides as they were, and, where they require grad, results of a node of ours. So they are no
// leaves, and an operator that changes them in place replays; their gradients are what arrives at
// the node.
//
// One PreparedCall per captured call, one RunInputs per run. Not shared between threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "fallback/moved_tensors.h"
#include "tensor/value.h"

namespace op_tools::replay {

struct RunInputs {
  Value args, kwargs, aten;         // aten: None when the file has none
  std::vector<at::Tensor> tensors;  // by tensor index of (args, kwargs)
  std::vector<GradientEdge> edges;  // where their gradients arrive; nullptr for those that require none
};

struct InputPlan {
  std::map<size_t, std::vector<int64_t>> restrided;     // of input.pth: strides by tensor index
  std::vector<c10::Device> devices;                     // where tensors go, by index; may be short
  std::function<c10::Device(c10::Device)> move_device;  // where other tensors and devices among the arguments go
};
RunInputs make_inputs(const Value& args, const Value& kwargs, const Value& aten, const InputPlan& plan);

// Gradients of `roots` with respect to the inputs, as torch.autograd.grad(..., allow_unused=True):
// undefined where there is none. Outputs without history and undefined gradients are left out.
std::vector<at::Tensor> input_gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads,
                                        const RunInputs& inputs, bool keep_graph);

// What ditorch saves instead: the gradients that the outputs' last node hands on, in the node's own
// order.
std::vector<at::Tensor> last_node_gradients(const std::vector<at::Tensor>& outputs,
                                            const std::vector<at::Tensor>& grads, const RunInputs& inputs,
                                            bool keep_graph);

}  // namespace op_tools::replay
