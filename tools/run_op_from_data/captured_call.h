// A saved call (calls/saved_call.h) as the replay reads it. Plain data; problems of a file's content are Errors that
// name the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "calls/saved_call.h"
#include "tensor/value.h"

namespace op_tools::replay {

using Tensors = std::vector<at::Tensor>;

// Of its tensors: the CPU when all were there.
c10::Device device_of(const SavedCall& call);
// Torch where no meta.json says otherwise.
Level level_of(const SavedCall& call);
// The dtype to which autocast cast its inputs; none where it was off. At the aten level the cast is a call before it.
std::optional<c10::ScalarType> autocast_of(const SavedCall& call);

// Of a backward pass: undefined where there is no gradient.
Tensors gradient_list(const Value& gradients);

// Throws Error when an input is a value that no file can hold.
void refuse_unsupported(const SavedCall& call);

}  // namespace op_tools::replay
