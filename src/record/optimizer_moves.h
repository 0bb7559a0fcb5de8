// How far the step of an optimizer moved a parameter, for recordings of modules: the move of an optimizer that divides
// by the size of the gradient (Adam, RMSprop, Adagrad), for a gradient that is rounding alone, is a whole step of any
// sign, so weights after the step say little of two runs. On the tensors' device, seen by no tool. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/export.h"

namespace op_tools {

// A copy of a parameter; undefined where it has no elements that can be subtracted.
OP_TOOLS_API at::Tensor copy_before_step(const at::Tensor& parameter);

// The step, each element times its gradient, which counts up to its root mean square: a move that rounding alone
// decided is next to nothing in it. `before`: of copy_before_step(). Undefined where the gradient is not of the
// parameter's form.
OP_TOOLS_API at::Tensor move_along_gradient(const at::Tensor& before, const at::Tensor& after,
                                            const at::Tensor& gradient);

}  // namespace op_tools
