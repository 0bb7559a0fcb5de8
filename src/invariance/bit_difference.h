// Two results of the same operator on the same values, bit for bit: where they differ, and by how much. Tensors of any
// device; pure, any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"

namespace op_tools {

struct BitDifference {
  static constexpr size_t kMostPlaces = 64;

  size_t output = 0;      // which of the tensors: the first that differs
  std::string structure;  // not empty: another shape, dtype or number of tensors; the numbers below are 0 then
  int64_t elements = 0;   // that differ
  int64_t numel = 0;
  int64_t rows = 0;  // of the first dimension: with an element that differs
  int64_t of_rows = 0;
  double max_ulp = 0;  // the largest difference, in units of the last place of the program's element
  double max_abs = 0;
  // The first kMostPlaces elements that differ: their numbers in the order of elements, and the addresses of both
  // sides.
  std::vector<int64_t> places;
  std::vector<uint64_t> program_addresses, other_addresses;
  uint64_t bits = 0;  // of an element, the lowest first: those that differ in any of them; complex: of both parts
};

// nullopt: the same bits. Tensors that are undefined on either side are left out. `program`: the result that the
// program got.
OP_TOOLS_API std::optional<BitDifference> bit_difference(const std::vector<at::Tensor>& program,
                                                         const std::vector<at::Tensor>& other);

// Of two rows, places in the first dimension, of a contiguous tensor on the CPU: how many elements have other bits. For
// callers that ask for every row of a batch.
OP_TOOLS_API int64_t elements_that_differ(const at::Tensor& rows, int64_t row, int64_t other);

// "bits 0-3 and 31".
OP_TOOLS_API std::string bits_text(uint64_t bits);

}  // namespace op_tools
