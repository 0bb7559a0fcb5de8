// Where the values of tensors come from, as far as a call that reads them can be judged by them: one answer for
// OpOverflowCheck, which asks who made a NaN, and OpRecord, which notes what a call read and gave. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hooks/op_call.h"

namespace op_tools {

enum class ValueSource : uint8_t {
  kGiven,    // to the calls that are looked at: data of the program, what other ranks have sent
  kMade,     // by a call that is looked at
  kUnknown,  // memory that was never written, a result that is not there yet
};

// What the name of an operator says of its results. Asked once for each name.
struct ResultSource {
  static ResultSource of(const OpCall& call);

  bool uninitialized = false, gives_data = false, collective = false;

  // In after().
  ValueSource of_results(OpCall& call) const;
};

// A tensor with values that cannot be looked at: no plain storage, or a layout of its own.
bool has_unseen_values(const at::Tensor& tensor);

}  // namespace op_tools
