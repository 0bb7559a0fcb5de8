// Fingerprints of the rows of a tensor: of each place of its batch and sequence dimensions. The rows of two tensors of
// other shapes (all tokens at once, or a token after the other) can be compared by them.
//
// A tensor of a device is copied to the CPU for them. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/export.h"
#include "record/recording.h"

namespace op_tools {

// The rows along one choice of dimensions.
struct RowPrints {
  RecordedRows rows;  // without the number of the value
  std::vector<RowPrint> prints;
};

// All choices: the first two dimensions of three or more; of four also the first with the third or the
// fourth (attention: batch, heads, tokens, channels, and its transposed keys), of five those behind the first (queries,
// keys and values together); the first of a matrix, both of a matrix of integers (the tokens' numbers); each element of
// a vector. Empty: the tensor has no dimension, no numbers of this kind, or too many rows.
OP_TOOLS_API std::vector<RowPrints> row_prints(const at::Tensor& tensor);

}  // namespace op_tools
