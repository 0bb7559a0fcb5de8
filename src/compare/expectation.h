// A result as it has to be: reference values and limits, for a program that has no judge (the scripts of op-tools
// repro). The judge (judge.h, call_judge.h) makes an expectation where JudgeContext::hands_out asks for one; a holder
// compares and needs no rule, table or dtype. Plain data; thread-safe functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/export.h"
#include "tensor/value.h"

namespace op_tools {

struct Expectation {
  // Dense. Of inexact dtypes float64 (complex128), others as they are. An element of the result has to be near the
  // element of at least one of them. Empty: the tensor is an input that the call must not change.
  std::vector<at::Tensor> values;
  // How far each element may be from the nearest value: float64, of their shape or a single number. The largest double:
  // as far as it likes, if it is finite.
  at::Tensor limit;
  // The root mean square of the distances, those of elements without a limit left out.
  double rmse = std::numeric_limits<double>::max();
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the result; undefined: autocast decides
  bool only_sizes = false;                             // values and limits are of the result's absolute value
  std::vector<std::vector<int64_t>> strides = {};      // that it may have; empty: any
  std::optional<std::vector<int64_t>> aliases = {};    // the inputs whose memory it shows; nullopt: any
  std::optional<std::vector<int64_t>> shared = {};     // the results before it with elements in common; nullopt: any
};

// Nothing but these elements, NaN being equal to NaN.
OP_TOOLS_API Expectation expect_exactly(const at::Tensor& value);
// These elements, too large numbers as `dtype` holds them, and those limits.
OP_TOOLS_API Expectation expect_near(const std::vector<at::Tensor>& values, c10::ScalarType dtype, double limit);
// Narrows the limits to `units` of the last place.
void limit_by_ulp(double units, Expectation* expected);
// Where `run` is NaN or infinite otherwise than the first of the values, the result may be as it is there.
void allow_nonfinite_as_in(const at::Tensor& run, Expectation* expected);

// A Dict with the fields by their names.
OP_TOOLS_API Value to_value(const Expectation& expected);

}  // namespace op_tools
