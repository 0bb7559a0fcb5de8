// Results of which an operator leaves something open: the order of a set, the signs of a decomposition's vectors, the
// index among equal elements. Each is judged by the rest that the operator fixes. Pure, thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "compare/call_facts.h"
#include "compare/judge.h"

namespace op_tools {

// A set of values in any order, and then the places and counts of each value (unique). `judgement`: of the elements one
// by one, which differ. `outputs`, `expected`: all tensors of the call's result and of the CPU's.
TensorVerdict judge_set(const CallFacts& facts, TensorVerdict judgement, const at::Tensor& result,
                        const at::Tensor& reference, const std::vector<at::Tensor>& outputs,
                        const std::vector<at::Tensor>& expected);

// A judgement of elements that differ where the operator leaves the difference open: they agree.
TensorVerdict agreeing(TensorVerdict judgement, const char* reason);

// Vectors whose sign (complex: phase) is ambiguous: the sizes of their elements.
TensorVerdict judge_sizes(const at::Tensor& result, const at::Tensor& reference, JudgeContext context);
// The same, and the product of all factors of a decomposition (`outputs`) must be the matrix.
TensorVerdict judge_factor(const CallFacts& facts, const at::Tensor& result, const at::Tensor& reference,
                           const JudgeContext& context, const std::vector<at::Tensor>& outputs);

// Do both hold indices of equal elements of the call's first input (argmax, sort, topk)? Those of `indices` also have
// to be such as the operator may give: each element once, none that comes later.
bool name_same_elements(const CallFacts& facts, const at::Tensor& indices, const at::Tensor& other);

// Does the call leave the order of its results open (topk with sorted=False), and are `outputs` the elements of
// `expected` in another order, with indices of these elements?
bool are_same_in_other_order(const CallFacts& facts, const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& expected);

}  // namespace op_tools
