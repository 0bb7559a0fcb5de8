// The inputs of a run of a call, made for a RunVariant: the only place that changes dtypes, values and scalars, for
// live judging and for replay. Thread-safe; each run needs inputs of its own, because the operator may write them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "compare/rerun/run_outcome.h"
#include "fallback/cpu_runner.h"
#include "tensor/value.h"

namespace op_tools {

// The arguments of a call in every form in which they were recorded.
struct CallArguments {
  Value args;    // Tuple
  Value kwargs;  // Dict with string keys
  // The aten call behind a torch-level call: Tuple(name, Tuple(arguments by schema position)). Its tensors are those of
  // args and kwargs. None: not recorded.
  Value aten;
};

// The call with some of its tensors replaced by copies, wherever they stand: args, kwargs and the aten call have the
// same tensors. `copy_of`: undefined: the tensor stays.
CallArguments with_copies(const CallArguments& call, const std::function<at::Tensor(const at::Tensor&)>& copy_of);

// float64 for every inexact dtype, complex128 for complex ones, others as they are.
OP_TOOLS_API c10::ScalarType golden_dtype(c10::ScalarType dtype);

// By input tensor: the call reads it, and it shows memory which the call writes through another tensor, each element at
// another place (a[1:] = a[:-1]). Empty: there is none. `written`: by input tensor; empty: none.
OP_TOOLS_API std::vector<bool> reads_what_it_writes(const std::vector<at::Tensor>& tensors,
                                                    const std::vector<bool>& written);
// The call with copies in the place of those tensors.
CallArguments with_memory_of_their_own(const CallArguments& call, const std::vector<bool>& marks);

class OP_TOOLS_API VariantInputs {
 public:
  // `name`: of the operator. `autocast`: the dtype to which the call casts its inputs, where it does. Throws Error
  // when the variant would be the same as kFloat64 (kFloat32Scalars without such scalars) or a tensor has no plain
  // data. `devices`: for kOnDevice, by tensor index of (args, kwargs).
  VariantInputs(const CallArguments& recorded, std::string_view name, const RunVariant& variant,
                std::optional<c10::ScalarType> autocast, const std::vector<c10::Device>& devices = {});

  const CallArguments& arguments() const { return arguments_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // by tensor index of (args, kwargs)

  // The output gradients with which this run goes backward: changed as the inputs are.
  std::vector<at::Tensor> output_gradients(const std::vector<at::Tensor>& recorded) const;
  // Gradients of tensors() after a run with grad mode on, undefined where the run gives none. Uses up the graph.
  // `recorded`: the output gradients in the dtypes of the recording. The backward reads `outputs` changed by their
  // rounding where the inputs were changed and the operator's gradient is made of its result.
  std::vector<at::Tensor> input_gradients(const std::vector<at::Tensor>& outputs,
                                          const std::vector<at::Tensor>& output_gradients,
                                          const std::vector<at::Tensor>& recorded) const;
  // Where the gradients of tensors() arrive; invalid for those that require none.
  std::vector<GradientEdge> edges() const;

 private:
  const RunVariant variant_;
  const std::optional<c10::ScalarType> autocast_;
  const bool gradient_reads_result_;
  const MovedCall moved_;
  CallArguments arguments_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace op_tools
