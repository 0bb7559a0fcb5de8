// Which dimension of a call is the batch: rows that the operator computes each by itself, so that a row's result must
// not depend on the others, on their number or on its place among them. Known for operators of torch's own: those that
// torch tags as pointwise, and a table of families (linear layers, products, convolutions, normalisations along other
// dimensions, attention). Never guessed: an operator that is in neither has no batch.
// tests/python/test_invariance.py proves the table in float64 on torch's own samples of each operator. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

struct BatchForm {
  static constexpr size_t kAllResults = std::numeric_limits<size_t>::max();

  std::vector<bool> of;          // by input tensor: its first dimension is the batch; the others belong to every row
  int64_t rows = 0;              // in the batch
  size_t results = kAllResults;  // so many of the results, from the first, have the batch as their first dimension
  int64_t sequence =
      0;  // size of the second dimension of all of these where it has rows, too: [B, T, ...]; 0: it has none
  std::string_view why_not;  // it has none, or it is not known; empty: it has
};

// `tensors`: of args and kwargs, by tensor index. `written`: by tensor index; empty: none.
OP_TOOLS_API BatchForm batch_form(std::string_view op_name, const Value& args, const Value& kwargs,
                                  const std::vector<at::Tensor>& tensors, const std::vector<bool>& written);

}  // namespace op_tools
