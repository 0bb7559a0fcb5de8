// Random results of a known distribution: are these numbers drawn from it? Judged so that a right generator is called
// wrong once in 1e12 calls. Pure, thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "base/export.h"
#include "compare/judge.h"
#include "tensor/value.h"

namespace op_tools {

// The operator draws random numbers, judging by its name.
OP_TOOLS_API bool draws_random_numbers(std::string_view base_name);

// `args`, `kwargs`: of the call, before it. `index`: which tensor of the result. nullopt: the distribution is not
// known.
OP_TOOLS_API std::optional<TensorVerdict> judge_distribution(std::string_view base_name, const Value& args,
                                                             const Value& kwargs, const at::Tensor& result,
                                                             size_t index);

}  // namespace op_tools
