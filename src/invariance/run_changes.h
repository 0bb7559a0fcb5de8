// How a run of ours differs from the program's, as data: the run is made by it, the file of a finding has it (key
// `variation` of input.pth), and the script of op-tools repro does the same. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "invariance/copies.h"
#include "tensor/value.h"

namespace op_tools {

// Of attention: a mask in place of the causal order. Query i reads the keys from `left_out` up to first + i.
struct OrderMask {
  std::string_view parameters, name;  // of the operator, in order; that of the mask (hooks/attention_form.h)
  int64_t first = 0;
  int64_t left_out = 0;
};

// Of attention on packed sequences: a mask that keeps them apart. Each has the program's own mask (undefined: it has
// none), or the causal order.
struct PackingMask {
  std::string_view parameters, name;  // as above
  int64_t sequences = 0;
  bool is_causal = false;
};

// By index of the tensor. A tensor without changes is a copy without gaps; one that is not listed stays as it is.
struct RunChanges {
  using Tensors = std::map<size_t, TensorChanges>;
  Tensors inputs;     // of the call
  Tensors gradients;  // that arrive, of a backward pass
  // What must have the same bits: of the program's results, and of the run's (CallInvariance::values_of). Results that
  // are not listed are not compared.
  Tensors program, other;
  std::optional<int64_t> rows;  // that each compared result of the run has
  std::optional<OrderMask> order;
  std::optional<PackingMask> packing;
};

// Copies of the same tensors, without other elements.
RunChanges copies_of(const RunChanges& changes);
// Queries and keys of the run.
at::Tensor mask_of(const OrderMask& order, int64_t queries, int64_t keys, at::ScalarType dtype);
// `own`: the program's. Of `dims` dimensions: those of the queries. `queries`, `keys`: of all sequences.
at::Tensor mask_of(const PackingMask& packing, const at::Tensor& own, int64_t dims, int64_t queries, int64_t keys,
                   at::ScalarType dtype);
Value to_value(const RunChanges& changes);

}  // namespace op_tools
