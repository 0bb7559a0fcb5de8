#include "compare/expectation.h"

#include <ATen/ops/scalar_tensor_ops.h>
#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/where_ops.h>
#include <c10/core/InferenceMode.h>

#include <string>
#include <utility>

#include "compare/metrics/tensor_diff.h"
#include "compare/metrics/tolerance.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::max();

at::Tensor dense_on_cpu(const at::Tensor& tensor) {
  const at::Tensor here = on_cpu(tensor.detach());
  return here.layout() == at::kStrided ? here.contiguous() : here.to_dense();
}

c10::ScalarType wide(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? at::kComplexDouble : at::kDouble;
}

at::Tensor number(double value) {
  return at::_ops::scalar_tensor::call(value, at::kDouble, at::kStrided, c10::Device(c10::kCPU), false);
}

// torch knows few operators of 8-bit floats and of the smallest complex dtype.
at::Tensor readable(const at::Tensor& tensor) {
  return tensor.to(wide(tensor.scalar_type()));
}

// By element: which of them differ in being NaN or infinite. A complex number that is NaN in a part is NaN.
at::Tensor other_specials(const at::Tensor& a, const at::Tensor& b) {
  const auto differ = [](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor same = x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
    return same.logical_or(x.isfinite().logical_and(y.isfinite())).logical_not();
  };
  if (!a.is_complex()) return differ(a, b);
  const at::Tensor parts = differ(at::_ops::view_as_real::call(a), at::_ops::view_as_real::call(b)).any(-1);
  return parts.logical_and(a.isnan().logical_and(b.isnan()).logical_not());
}

}  // namespace

Expectation expect_exactly(const at::Tensor& value) {
  const c10::InferenceMode no_autograd;
  Expectation expected;
  const at::Tensor dense = dense_on_cpu(value);
  expected.values = {rounding_of(value.scalar_type()).unit > 0 ? readable(dense) : dense};
  expected.limit = number(0);
  expected.dtype = value.scalar_type();
  return expected;
}

Expectation expect_near(const std::vector<at::Tensor>& values, c10::ScalarType dtype, double limit) {
  const c10::InferenceMode no_autograd;
  Expectation expected;
  for (const at::Tensor& value : values) {
    const at::Tensor full = readable(dense_on_cpu(value));
    const at::Tensor held = readable(full.to(dtype));
    expected.values.push_back(at::_ops::where_self::call(held.isfinite(), full, held));
  }
  expected.limit = number(limit);
  expected.dtype = dtype;
  return expected;
}

void limit_by_ulp(double units, Expectation* expected) {
  const c10::InferenceMode no_autograd;
  const Rounding rounding = rounding_of(expected->dtype);
  at::Tensor most;
  for (const at::Tensor& value : expected->values) {
    const at::Tensor exponent = std::get<1>(value.abs().clamp_min(rounding.least).frexp()).sub(1);
    const at::Tensor place = number(units * rounding.unit).ldexp(exponent);
    most = most.defined() ? most.maximum(place) : place;
  }
  expected->limit = expected->limit.minimum(most.masked_fill(most.isfinite().logical_not(), kNoLimit));
}

void allow_nonfinite_as_in(const at::Tensor& run, Expectation* expected) {
  const c10::InferenceMode no_autograd;
  const at::Tensor& first = expected->values.front();
  if (!run.defined() || run.sizes() != first.sizes()) return;
  const at::Tensor full = readable(dense_on_cpu(run));
  const at::Tensor in_dtype = readable(full.to(expected->dtype));
  const at::Tensor other = other_specials(in_dtype, first);
  if (!other.any().item<bool>()) return;
  expected->values.push_back(at::_ops::where_self::call(other, in_dtype, first));
  expected->limit = at::_ops::where_ScalarSelf::call(other, kNoLimit, expected->limit);
}

Value to_value(const Expectation& expected) {
  Values values, strides;
  for (const at::Tensor& value : expected.values) values.emplace_back(value);
  for (const std::vector<int64_t>& strides_of_input : expected.strides)
    strides.push_back(make_list({strides_of_input.begin(), strides_of_input.end()}));
  std::vector<std::pair<Value, Value>> fields{{"values", make_list(std::move(values))},
                                              {"rmse", expected.rmse},
                                              {"only_sizes", expected.only_sizes},
                                              {"strides", make_list(std::move(strides))}};
  if (expected.limit.defined()) fields.emplace_back("limit", expected.limit);
  if (expected.dtype != c10::ScalarType::Undefined) fields.emplace_back("dtype", expected.dtype);
  for (const auto& [name, numbers] : {std::pair("aliases", expected.aliases), {"shared", expected.shared}}) {
    if (numbers) fields.emplace_back(name, make_list({numbers->begin(), numbers->end()}));
  }
  return make_dict(std::move(fields));
}

}  // namespace op_tools
