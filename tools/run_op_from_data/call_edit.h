// Changed copies of a saved call: parts that belong together (arguments, the recorded aten call, facts by tensor index)
// stays together. Its results are left out, because they belong to the original call. Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "calls/saved_call.h"

namespace op_tools::replay {

// By tensor index of (args, kwargs).
std::vector<at::Tensor> argument_tensors(const SavedCall& call);

// Each tensor replaced; a tensor that stands in several places is replaced once. requires_grad stays.
SavedCall with_tensors(const SavedCall& call, const std::function<at::Tensor(const at::Tensor&)>& change);
// Integers `from` become `to`, and tensors of integers below `from` hold integers below `to`.
SavedCall with_numbers(const SavedCall& call, int64_t from, int64_t to);
SavedCall without_keyword(const SavedCall& call, std::string_view name);
SavedCall without_last_argument(const SavedCall& call);
SavedCall forward_alone(const SavedCall& call);

}  // namespace op_tools::replay
