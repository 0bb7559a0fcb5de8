// A saved call (calls/saved_call.h) as the replay reads it. Plain data; problems of a file's content are Errors that
// name the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "calls/saved_call.h"
#include "tensor/value.h"

namespace op_tools::replay {

using Tensors = std::vector<at::Tensor>;

// Of a backward pass: undefined where there is no gradient.
Tensors gradient_list(const Value& gradients);

// Throws Error when an input is one that no file can hold.
void refuse_unsupported(const SavedCall& call);

}  // namespace op_tools::replay
