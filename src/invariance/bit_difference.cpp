#include "invariance/bit_difference.h"

#include <algorithm>
#include <cstring>

#include "compare/metrics/tensor_diff.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

// Of an element, by its number in the order of elements.
uint64_t address_of(const at::Tensor& tensor, int64_t element) {
  int64_t offset = 0;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    offset += element % tensor.size(dim) * tensor.stride(dim);
    element /= tensor.size(dim);
  }
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) +
         static_cast<uint64_t>(offset) * static_cast<uint64_t>(tensor.itemsize());
}

BitDifference difference_of(const at::Tensor& program, const at::Tensor& other) {
  BitDifference difference;
  const TensorDiff numbers = diff_tensors(other, program, {.nan_equal = false});
  if (!numbers.structure.empty()) {
    difference.structure = numbers.structure;
    return difference;
  }
  difference.numel = numbers.numel;
  difference.max_ulp = numbers.max_ulp;
  difference.max_abs = numbers.max_abs;
  if (program.layout() != at::kStrided) return difference;
  const at::Tensor a = on_cpu(program).contiguous(), b = on_cpu(other).contiguous();
  const size_t item = a.itemsize();
  const auto* left = static_cast<const unsigned char*>(a.const_data_ptr());
  const auto* right = static_cast<const unsigned char*>(b.const_data_ptr());
  difference.of_rows = a.dim() > 0 ? a.size(0) : 1;
  const int64_t in_a_row = difference.of_rows > 0 ? a.numel() / difference.of_rows : 0;
  int64_t last_row = -1;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const size_t place = static_cast<size_t>(i) * item;
    if (std::memcmp(left + place, right + place, item) == 0) continue;
    ++difference.elements;
    if (difference.places.size() < BitDifference::kMostPlaces) {
      difference.places.push_back(i);
      difference.program_addresses.push_back(address_of(program, i));
      difference.other_addresses.push_back(address_of(other, i));
    }
    if (const int64_t row = i / in_a_row; row != last_row) {
      ++difference.rows;
      last_row = row;
    }
    for (size_t part = 0; part < item; part += sizeof(uint64_t)) {
      uint64_t x = 0, y = 0;
      std::memcpy(&x, left + place + part, std::min(item - part, sizeof x));
      std::memcpy(&y, right + place + part, std::min(item - part, sizeof y));
      difference.bits |= x ^ y;
    }
  }
  return difference;
}

}  // namespace

std::optional<BitDifference> bit_difference(const std::vector<at::Tensor>& program,
                                            const std::vector<at::Tensor>& other) {
  if (program.size() != other.size()) {
    BitDifference difference;
    difference.structure = std::to_string(other.size()) + " tensors instead of " + std::to_string(program.size());
    return difference;
  }
  for (size_t i = 0; i < program.size(); ++i) {
    if (!program[i].defined() || !other[i].defined() || same_bits(other[i], program[i])) continue;
    BitDifference difference = difference_of(program[i], other[i]);
    difference.output = i;
    return difference;
  }
  return std::nullopt;
}

int64_t elements_that_differ(const at::Tensor& rows, int64_t row, int64_t other) {
  const size_t item = rows.itemsize(), bytes = static_cast<size_t>(rows.numel() / rows.size(0)) * item;
  const auto* const memory = static_cast<const unsigned char*>(rows.const_data_ptr());
  const unsigned char* const left = memory + static_cast<size_t>(row) * bytes;
  const unsigned char* const right = memory + static_cast<size_t>(other) * bytes;
  if (std::memcmp(left, right, bytes) == 0) return 0;
  int64_t elements = 0;
  for (size_t place = 0; place < bytes; place += item) {
    elements += std::memcmp(left + place, right + place, item) != 0;
  }
  return elements;
}

std::string bits_text(uint64_t bits) {
  std::string text;
  int count = 0;
  for (int first = 0; first < 64; ++first) {
    if (!(bits >> first & 1)) continue;
    int last = first;
    while (last < 63 && (bits >> (last + 1) & 1)) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
    count += last - first + 1;
    first = last;
  }
  return (count == 1 ? "bit " : "bits ") + text;
}

}  // namespace op_tools
