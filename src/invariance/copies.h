// Copies of a call's tensors for the runs that must keep its bits: other elements, in the order of memory that the
// program's tensor has, since kernels choose their path by it. On the CPU; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace op_tools {

// The elements without gaps, the dimensions in the order of the strides of `like`, which has as many dimensions.
at::Tensor dense_copy(const at::Tensor& elements, const at::Tensor& like);
// Rows of the first dimension, likewise.
at::Tensor rows_of(const at::Tensor& tensor, const std::vector<int64_t>& rows);
// The same elements with room behind each row, as in a cache: the second innermost dimension in memory (of two: the
// innermost) has place for twice its size, and the other half holds the same elements again. A tensor that has gaps, or
// elements at the same place, gets a copy without. Undefined: it has nothing that could be moved apart, or rows
// of a single element: statistics of rows, which kernels read as they wrote them.
at::Tensor copy_with_gaps(const at::Tensor& tensor);

}  // namespace op_tools
