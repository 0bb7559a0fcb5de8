// The tensors of a run of a captured call: private copies on the device of the run, aliasing and
// strides as they were, and, where they require grad, results of a node of ours. So they are no
// leaves, and an operator that changes them in place replays; their gradients are those that arrive at
// the node.
//
// A RunInputs per run. Not shared between threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "fallback/moved_tensors.h"
#include "run_op_from_data/captured_call.h"
#include "tensor/value.h"

namespace op_tools::replay {

struct RunInputs {
  Value args, kwargs, aten;         // aten: None when the file has none
  std::vector<at::Tensor> tensors;  // by tensor index of (args, kwargs)
  std::vector<GradientEdge> edges;  // where their gradients arrive; nullptr for those that require none
};

// Where the inputs go.
struct InputPlan {
  std::map<size_t, std::vector<int64_t>> restrided;     // of input.pth: strides by tensor index
  std::vector<c10::Device> devices;                     // where tensors go, by index; may be short
  std::function<c10::Device(c10::Device)> move_device;  // where other tensors and devices among the arguments go
  std::optional<c10::Device> default_device;            // of factories whose call names none
};
// torch.ones(4) names no device: under torch.set_default_device it is called with the default one.
bool leaves_device_open(std::string_view name, const Value& args, const Value& kwargs);
InputPlan plan_for(const SavedCall& call, c10::Device device);
RunInputs make_inputs(const SavedCall& call, const InputPlan& plan);

// By tensor index: the call writes it, as far as its files say, and has nothing to do with the size of its storage.
std::vector<bool> written_in_room(const SavedCall& call);
// Gives these tensors, and those on their memory, room before and behind them in the same storage, filled with a
// pattern: for MemoryBeside. Alignment within kBytes stays.
void give_room(const RunInputs& inputs, const std::vector<bool>& written);

// The gradients that ditorch saves in place of the inputs': those that the outputs' last node hands on, in the node's
// own order. `edges`: where the inputs' gradients arrive.
std::vector<at::Tensor> last_node_gradients(const std::vector<at::Tensor>& outputs,
                                            const std::vector<at::Tensor>& grads,
                                            const std::vector<GradientEdge>& edges, bool keep_graph);

}  // namespace op_tools::replay
