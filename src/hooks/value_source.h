// Where the values of tensors come from, as far as a call that reads them can be judged by them: a common answer for
// OpOverflowCheck, which asks who made a NaN, and OpRecord, which notes inputs and results of a call. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hooks/op_call.h"

namespace op_tools {

enum class ValueSource : uint8_t {
  kGiven,    // to the calls that are looked at: data of the program, tensors from other ranks
  kMade,     // by a call that is looked at
  kUnknown,  // memory that was never written, a result that is not there yet
};

// The facts that the name of an operator tells about its results. Asked once for each name.
struct ResultSource {
  static ResultSource of(const OpCall& call);

  bool uninitialized = false, gives_data = false, collective = false;
  bool reads_elements = true;  // a result that is no tensor is made of tensors' elements: item(), equal()

  // In after().
  ValueSource of_results(OpCall& call) const;
};

// torch.tensor([1, 2]) at the aten level: the program wrote the memory of its argument, which no operator shows. Asked
// once for each name.
bool lifts_data(const OpCall& call);

// A tensor with values that cannot be looked at: no plain storage, or a layout of its own.
bool has_unseen_values(const at::Tensor& tensor);

}  // namespace op_tools
