// Random results of a known distribution: are these numbers drawn from it, and each without regard to its neighbours in
// the row and in the column? Judged so that a right generator is called wrong once in 1e12 calls. Pure, thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "compare/judge.h"
#include "tensor/value.h"

namespace op_tools {

// `args`, `kwargs`: of the call, before it. `results`: all its tensors; `index`: which of them is judged. nullopt: the
// distribution is not known.
OP_TOOLS_API std::optional<TensorVerdict> judge_distribution(std::string_view base_name, const Value& args,
                                                             const Value& kwargs,
                                                             const std::vector<at::Tensor>& results, size_t index);

}  // namespace op_tools
