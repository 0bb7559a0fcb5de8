// A call's inputs on another device or in other dtypes, to run the same call there: on the CPU, in float64, and so on.
// Made in the program's thread while the inputs are as before the call, or from a snapshot of them at any
// time and in any thread; each run wants a MovedCall of its own, because a run may change its inputs.
//
//   MovedCall on_cpu(call.args(), call.kwargs(), {.device = c10::kCPU, .fresh = true});
//   Value result = runner->run(on_cpu.args(), on_cpu.kwargs());      // the caller sets grad mode and autocast
//   on_cpu.tensors();                                                // by tensor index: the run's version of its
//   inputs on_cpu.gradients(flatten_tensors(result), arrived, false);       // by tensor index
//
// Not shared between threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"
#include "fallback/moved_tensors.h"
#include "tensor/value.h"

namespace op_tools {

class OP_TOOLS_API MovedCall {
 public:
  // Error that says why when a tensor has no plain data. Beside the tensors, arguments that name the device of the
  // call's tensors ("cuda:0", a Device) name the target's; dtype arguments are cast (softmax(x, dtype=float32) in
  // float64 is a softmax with dtype=float64); generators of other devices become CPU ones (see random_stream.h) for the
  // CPU.
  MovedCall(const Value& args, const Value& kwargs, const Target& target);

  const Value& args() const { return args_; }
  const Value& kwargs() const { return kwargs_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // by tensor index of (args, kwargs)

  // Gradients of the inputs by tensor index, undefined where the run gives none. `outputs`: the run's result, run with
  // grad mode on; `output_gradients` by output tensor, from any device and in any dtype, undefined where none arrived.
  std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs,
                                    const std::vector<at::Tensor>& output_gradients, bool keep_graph) const;
  // Where the gradients of tensors() arrive; nullptr for those that require none.
  const std::vector<GradientEdge>& edges() const { return edges_; }

  size_t bytes() const { return moved_.bytes(); }

 private:
  MovedTensors moved_;
  Value args_, kwargs_;
  std::vector<at::Tensor> tensors_;
  std::vector<GradientEdge> edges_;
};

// The same tree with each value that has no parts replaced by visit(value).
OP_TOOLS_API Value map_leaves(const Value& value, const std::function<Value(const Value&)>& visit);

// `named` among the arguments means this device: "cuda" also means cuda:0 where the tensors are there.
OP_TOOLS_API bool is_same_device(c10::Device named, c10::Device device);

// The device of the tensors that are not on the CPU; the CPU when all are there. nullopt when they are on several.
OP_TOOLS_API std::optional<c10::Device> device_of(const std::vector<at::Tensor>& tensors);

}  // namespace op_tools
