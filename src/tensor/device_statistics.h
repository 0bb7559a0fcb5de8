// The numbers of a tensor's statistics, computed by its device. For statistics.h alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "tensor/sign_pattern.h"

namespace op_tools::device_statistics {

// The words that come from a device: doubles by their bits, then integers.
enum Word : size_t {
  kMin,
  kMax,
  kNorm,
  kProjection,
  kSum = kProjection + sign_pattern::kProjections,
  kNan,
  kZero,
  kInf,
  kMinusInf,  // real numbers: those of kInf are not among them
  kHash,
  kExactMin,
  kExactMax,
  kWords
};

// On the device: a word for each of Word. Throws the exception of a device that lacks an operator of it.
at::Tensor words_of(const at::Tensor& tensor);

// The elements as they read: without a bit that says conj or neg.
at::Tensor resolved(const at::Tensor& tensor);

}  // namespace op_tools::device_statistics
