// Copies of a call's tensors for the runs that must keep its bits: other elements, in the order of memory that the
// program's tensor has, since kernels choose their path by it. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace op_tools {

// What is done with the elements of a tensor, as data: the run is made by it, the file of a finding tells it, and the
// script of op-tools repro does it again (op_tools/repro/_relation.py).
struct TensorChange {
  enum class Kind : uint8_t {
    kPlaces,     // these places of the dimension, in this order
    kFill,       // `count` more places of the dimension, of `number`: behind the others, or in front of them
    kJoin,       // the first two dimensions as one of them: [B, T, ...] becomes [1, B T, ...]
    kPack,       // [B, ..., T, size] becomes [1, ..., B T, size]
    kGaps,       // the same elements with room behind each row; without where there is some
    kAlignment,  // the same elements and strides, an element further from an address that 64 divides
  };
  Kind kind = Kind::kPlaces;
  int64_t dim = 0;  // negative: from the last
  std::vector<int64_t> places = {};
  int64_t count = 0;
  double number = 0;
  bool in_front = false;
};
using TensorChanges = std::vector<TensorChange>;

TensorChange places_of(int64_t dim, std::vector<int64_t> places);
// 0, 1, 2 and so on.
std::vector<int64_t> first_places(int64_t count);

// The tensor after the changes, in its order of memory; without changes: a copy without gaps. On the CPU, but of
// kAlignment: on its device. Undefined: it has no such places.
at::Tensor changed_copy(const at::Tensor& tensor, const TensorChanges& changes);
// kGaps, kAlignment: it can be moved so.
bool can_have_gaps(const at::Tensor& tensor);
bool can_have_other_alignment(const at::Tensor& tensor);

// The elements without gaps, the dimensions in the order of the strides of `like`, which has as many dimensions.
at::Tensor dense_copy(const at::Tensor& elements, const at::Tensor& like);

}  // namespace op_tools
