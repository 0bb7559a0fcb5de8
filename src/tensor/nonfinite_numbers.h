// Are there NaN or infinities? A single pass over a tensor's memory on the CPU. Any thread; threads of torch's help
// with large tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace op_tools {

// The real numbers of a plain floating or complex tensor on the CPU, dense in memory, in whatever order; of a complex
// element both parts. A view where the tensor is dense.
at::Tensor dense_reals(const at::Tensor& tensor);

bool has_nonfinite(const at::Tensor& dense_reals);

}  // namespace op_tools
