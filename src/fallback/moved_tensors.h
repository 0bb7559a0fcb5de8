// A call's tensors somewhere else: on another device, in other dtypes, or both. Memory that the tensors share, their
// copies share: a storage is copied once (only the range that is shown), a tensor that occurs twice has a single copy,
// strides, storage aliasing, conj and neg bits, zero tensors and the marks of wrapped numbers are preserved; the place
// within 64 bytes of memory, too, but beside a sparse tensor. Memory that is copied on write already is not copied, but
// shared further. Used by the executors (redirect.h) in both directions and by MovedCall (cpu_runner.h). Not shared
// between threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/export.h"

namespace torch::autograd {
struct Edge;
}

namespace op_tools {

// Where in the autograd graph a gradient arrives; nullptr: nowhere. Only a pointer, because the header that defines
// Edge takes 5 s to compile.
using GradientEdge = std::shared_ptr<const torch::autograd::Edge>;

// From a dtype of the program to the dtype of the run: the same where nothing is to be done. Empty: nothing is.
using DtypeMap = std::function<at::ScalarType(at::ScalarType)>;

struct Target {
  c10::Device device;
  DtypeMap cast = nullptr;  // not for wrapped numbers (the 2 of `x + 2`), which take no part in type promotion
  // false: a tensor that is there already, in its dtype, is used as it is. true: it is copied too.
  bool fresh = false;
  // The device of the copy of an original, for calls whose tensors are on several devices. Empty: `device`.
  std::function<c10::Device(const at::Tensor&)> device_of = nullptr;
};

// Where the gradients of copies go that stand for tensors which require grad. A copy is never a leaf, so operators may
// change it in place.
enum class GradientsGo : uint8_t {
  kNowhere,      // copies require no grad
  kToOriginals,  // to the program's tensors, moved back; backward may be differentiated again
  kToEdges,      // as far as edge_of(copy): nothing of the program is reached
};

// Whether copies of these together lie at their originals' places within 64 bytes of memory. False: a sparse tensor is
// among them. Operators of torch that take a dense tensor beside it count its storage offset twice
// (`dense.add_(sparse)` on the CPU, torch 2.13), and write past the end of a storage that has no more than the shown
// range.
OP_TOOLS_API bool copies_keep_offsets(const std::vector<at::Tensor>& originals);

class OP_TOOLS_API MovedTensors {
 public:
  // Copies all of them now, on the current streams. Error that says why when a tensor has no plain data (a subclass, a
  // nested or quantized tensor); c10::Error when the device cannot.
  MovedTensors(const std::vector<at::Tensor>& originals, const Target& target, GradientsGo gradients);
  ~MovedTensors();
  MovedTensors(const MovedTensors&) = delete;
  MovedTensors& operator=(const MovedTensors&) = delete;

  // The copy of one of the originals (itself where no copy was needed).
  at::Tensor copy_of(const at::Tensor& original) const;
  // The original of a copy; undefined when `tensor` is none.
  at::Tensor original_of(const at::Tensor& tensor) const;
  // The part of an original that a tensor over a copy's memory shows, as a (differentiable) view of the original;
  // undefined when it shows no copy's memory, or the copy has another dtype than the original.
  at::Tensor view_of_original(const at::Tensor& tensor) const;
  // Where the gradient of a copy arrives, kToEdges; nullptr for the others.
  GradientEdge edge_of(const at::Tensor& copy) const;

  size_t bytes() const;  // copied, as they are in the target

 private:
  class Copier;
  std::unique_ptr<Copier> copier_;
};

// Gradients of `outputs` with respect to `edges`, as torch.autograd.grad(..., allow_unused=True) on the outputs' device
// and in their dtypes: undefined where there is none. Outputs without history and undefined gradients are left out.
OP_TOOLS_API std::vector<at::Tensor> gradients_at(const std::vector<GradientEdge>& edges,
                                                  const std::vector<at::Tensor>& outputs,
                                                  const std::vector<at::Tensor>& output_gradients, bool keep_graph,
                                                  bool create_graph = false);

}  // namespace op_tools
