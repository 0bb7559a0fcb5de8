// The methods of judge(), each in a file of its own: method_relative.cpp, method_by_difference.cpp. Pure, thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/text_table.h"
#include "compare/judge.h"

namespace op_tools {

// "relative": against the float64 run, or the CPU's result where there is none. `reference` may be undefined.
TensorVerdict judge_relative(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context);

// All others: a single difference, from the CPU's result, or from float64 where that is asked for or all there is.
TensorVerdict judge_by_difference(const at::Tensor& result, const at::Tensor& reference, const JudgeContext& context,
                                  CompareMethod method);

AppliedMethod applied(CompareMethod method);

// Of a measure or a limit, in a verdict's text.
inline std::string number_text(double value) {
  return formatted("%.4g", value);
}

}  // namespace op_tools
