#include "compare/metrics/tensor_diff.h"

#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/where_ops.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <tuple>

#include "compare/metrics/error_sums.h"
#include "tensor/float_conversion.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

bool has_elements_known(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, true) || dtype == c10::ScalarType::UInt16 || dtype == c10::ScalarType::UInt32 ||
         dtype == c10::ScalarType::UInt64 || c10::isComplexType(dtype) || rounding_of(dtype).unit > 0;
}

std::string text_of(double value) {
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, written.ptr};
}

template <class T>
std::string integer_text(const void* data, int64_t at) {
  return std::to_string(static_cast<const T*>(data)[at]);
}

std::string element_text(c10::ScalarType dtype, const void* data, int64_t at) {
  if (dtype == c10::ScalarType::Bool) return static_cast<const bool*>(data)[at] ? "True" : "False";
  if (dtype == c10::ScalarType::Long) return integer_text<int64_t>(data, at);
  if (dtype == c10::ScalarType::UInt64) return integer_text<uint64_t>(data, at);
  double parts[2] = {0, 0};
  load_float64(dtype, data, at, 1, parts);
  if (!c10::isComplexType(dtype)) return text_of(parts[0]);
  return std::string("(").append(text_of(parts[0])).append(", ").append(text_of(parts[1])).append(")");
}

// The index of the element that lies at `position` in memory.
std::vector<int64_t> index_at(int64_t position, const at::Tensor& tensor) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.dim()));
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dims.push_back(i);
  }
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  for (const int64_t dim : dims) {
    index[static_cast<size_t>(dim)] = position / tensor.stride(dim);
    position %= tensor.stride(dim);
  }
  return index;
}

TensorDiff different_structure(const char* kind, const std::string& result, const std::string& golden) {
  TensorDiff diff;
  diff.bits_equal = false;
  diff.kind = kind;
  diff.structure = std::string(kind).append(" ").append(result).append(", expected ").append(golden);
  return diff;
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

SumPlan plan_for(const at::Tensor& a, const at::Tensor& b, const DiffOptions& options) {
  const Rounding rounding = rounding_of(a.scalar_type());
  SumPlan plan{&options,           a.scalar_type(), b.scalar_type(), a.is_complex(),
               rounding.unit == 0, rounding.least,  rounding.unit,   std::numeric_limits<double>::max()};
  if (plan.is_exact) {
    plan.least = 1;
  } else if (a.scalar_type() != b.scalar_type()) {
    plan.limit = rounding.most + std::exp2(std::ilogb(rounding.most)) * rounding.unit * 0.49999;
  }
  return plan;
}

// Everything that is a sum or a maximum over elements, but for sums of squares.
TensorDiff diff_of(const ErrorSums& sums, const SumPlan& plan, const DiffOptions& options, int64_t numel) {
  TensorDiff diff;
  diff.numel = numel;
  diff.bits_equal = sums.bits_equal;
  diff.outside = sums.outside;
  diff.max_abs = sums.max_d;
  diff.max_rel = sums.max_rel;
  diff.golden_max = sums.max_m;
  diff.result = sums.result;
  diff.golden = sums.golden;
  diff.nonfinite_mismatches = sums.mismatches;
  diff.small_outside = sums.small_outside;
  diff.normal_outside = sums.normal_outside;
  diff.over_relative.assign(sums.over_relative.begin(),
                            sums.over_relative.begin() + static_cast<std::ptrdiff_t>(options.relative_limits.size()));
  diff.over_ulp.assign(sums.over_ulp.begin(),
                       sums.over_ulp.begin() + static_cast<std::ptrdiff_t>(options.ulp_limits.size()));
  if (!plan.is_exact) {
    diff.max_ulp = sums.max_ulp / plan.unit;
    if (numel > 0) diff.mean_ulp = sums.sum_ulp / plan.unit / static_cast<double>(numel);
  }
  if (numel > 0) diff.mean_abs = sums.sum_d / static_cast<double>(numel);
  return diff;
}

// `scaled`: sums of elements that were multiplied by `scale`, so that their squares fit a double.
void add_squares(const ErrorSums& scaled, double scale, TensorDiff* diff) {
  if (diff->numel > 0) {
    const auto count = static_cast<double>(diff->numel);
    diff->rmse = std::sqrt(scaled.sum_d2 / count) / scale;
    diff->golden_rms = std::sqrt(scaled.bb / count) / scale;
  }
  if (scaled.aa > 0 && scaled.bb > 0) {
    diff->cosine = std::clamp(scaled.ab / (std::sqrt(scaled.aa) * std::sqrt(scaled.bb)), -1.0, 1.0);
  } else {
    diff->cosine = scaled.aa == scaled.bb ? 1 : 0;
  }
}

TensorDiff diff_dense(const at::Tensor& result, const at::Tensor& golden, const DiffOptions& options) {
  at::Tensor dense_result = on_cpu(result);
  at::Tensor dense_golden = on_cpu(golden);
  bring_into_one_order(dense_result, dense_golden);
  if (!has_elements_known(dense_result.scalar_type()) || !has_elements_known(dense_golden.scalar_type())) {
    TensorDiff diff;
    diff.bits_equal = false;
    diff.kind = "dtype";
    diff.structure = "dtype " + printed(dense_golden.scalar_type()) + " cannot be compared by element";
    return diff;
  }
  const int64_t numel = dense_golden.numel();
  const void* const results = dense_result.const_data_ptr();
  const void* const goldens = dense_golden.const_data_ptr();
  SumPlan plan = plan_for(dense_result, dense_golden, options);
  const ErrorSums sums = sum_errors(plan, results, goldens, numel);
  TensorDiff diff = diff_of(sums, plan, options, numel);
  // Squares that a double cannot hold: once more, with numbers near 1.
  ErrorSums scaled = sums;
  const double largest = std::max(sums.max_m, sums.max_d);
  const bool overflow = !std::isfinite(sums.aa) || !std::isfinite(sums.bb) || !std::isfinite(sums.sum_d2);
  if (largest > 0 && (overflow || largest < 1e-140)) {
    plan.scale = std::exp2(-std::ilogb(largest) - 2);
    scaled = sum_errors(plan, results, goldens, numel);
  }
  add_squares(scaled, plan.scale, &diff);
  const int64_t worst = sums.mismatch_at >= 0 ? sums.mismatch_at : sums.worst_at;
  if (worst >= 0) {
    diff.has_worst = true;
    diff.worst_index = index_at(worst, dense_golden);
    diff.worst_result = element_text(dense_result.scalar_type(), results, worst);
    diff.worst_golden = element_text(dense_golden.scalar_type(), goldens, worst);
  }
  return diff;
}

// The dense tensors that a sparse tensor consists of: indices, then values.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kSparse: {
      const at::Tensor coalesced = tensor.coalesce();
      return {coalesced.indices(), coalesced.values()};
    }
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    default:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
  }
}

TensorDiff diff_sparse(const at::Tensor& result, const at::Tensor& golden, const DiffOptions& options) {
  const auto result_parts = parts_of(result);
  const auto golden_parts = parts_of(golden);
  bool same_pattern = true;
  for (size_t i = 0; i + 1 < golden_parts.size() && same_pattern; ++i) {
    same_pattern = result_parts[i].sizes() == golden_parts[i].sizes() &&
                   diff_dense(result_parts[i], golden_parts[i], {}).bits_equal;
  }
  if (same_pattern) return diff_dense(result_parts.back(), golden_parts.back(), options);
  // A zero that only one side stores is no difference.
  TensorDiff diff = diff_dense(result.to_dense(), golden.to_dense(), options);
  diff.bits_equal = false;
  return diff;
}

// The dtype itself, or the float64 (complex128) that stands for it.
bool stands_for(c10::ScalarType golden, c10::ScalarType result) {
  if (golden == result) return true;
  if (golden == c10::ScalarType::Double) return rounding_of(result).unit > 0 && !c10::isComplexType(result);
  return golden == c10::ScalarType::ComplexDouble && c10::isComplexType(result);
}

}  // namespace

TensorDiff diff_tensors(const at::Tensor& result, const at::Tensor& golden, const DiffOptions& options) {
  if (!result.defined() || !golden.defined()) {
    if (!result.defined() && !golden.defined()) return {};
    return different_structure("presence", result.defined() ? "a tensor" : "no tensor",
                               golden.defined() ? "a tensor" : "no tensor");
  }
  if (result.sizes() != golden.sizes()) {
    return different_structure("shape", printed(result.sizes()), printed(golden.sizes()));
  }
  if (!stands_for(golden.scalar_type(), result.scalar_type())) {
    return different_structure("dtype", printed(result.scalar_type()), printed(golden.scalar_type()));
  }
  if (result.layout() != golden.layout()) {
    return different_structure("layout", printed(result.layout()), printed(golden.layout()));
  }
  const c10::InferenceMode no_autograd;
  if (golden.layout() == at::kStrided) return diff_dense(result, golden, options);
  if (golden.layout() == at::kMkldnn) {
    return diff_dense(result.to_dense(), golden.to_dense(), options);
  }
  return diff_sparse(result, golden, options);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.layout() == at::kStrided && b.layout() == at::kStrided) return same_strided_bits(a, b);
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.layout() == b.layout() &&
         diff_tensors(a, b).bits_equal;
}

void find_worst_by_ulp(const at::Tensor& result, const at::Tensor& golden, TensorDiff* diff) {
  if (result.layout() != at::kStrided || result.numel() == 0) return;
  const c10::InferenceMode no_autograd;
  const Rounding rounding = rounding_of(result.scalar_type());
  const at::Tensor a = on_cpu(result).reshape({-1}), b = on_cpu(golden).reshape({-1});
  const c10::ScalarType wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor distance = a.to(wide).sub(b.to(wide)).abs();
  const at::Tensor exponent = std::get<1>(b.to(wide).abs().clamp_min(rounding.least).frexp());
  const at::Tensor ulps = distance.ldexp(exponent.neg()).nan_to_num(0, 0, 0);
  const auto worst = ulps.argmax().item<int64_t>();
  const TensorDiff element = diff_tensors(a.slice(0, worst, worst + 1), b.slice(0, worst, worst + 1));
  diff->has_worst = true;
  diff->worst_index.assign(static_cast<size_t>(result.dim()), 0);
  int64_t rest = worst;
  for (int64_t dim = result.dim(); dim-- > 0; rest /= result.size(dim)) {
    diff->worst_index[static_cast<size_t>(dim)] = rest % result.size(dim);
  }
  diff->worst_result = element.worst_result;
  diff->worst_golden = element.worst_golden;
}

at::Tensor nearest(const at::Tensor& result, const std::vector<at::Tensor>& candidates) {
  const c10::InferenceMode no_autograd;
  const c10::ScalarType wide = result.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor own = on_cpu(result).to(wide);
  at::Tensor closest, distance;
  for (const at::Tensor& candidate : candidates) {
    if (!candidate.defined() || candidate.sizes() != result.sizes() || candidate.layout() != at::kStrided) continue;
    const at::Tensor other = on_cpu(candidate).to(wide);
    // Equal infinities and NaN on both sides are no distance, any other pair with such a number is the largest.
    const at::Tensor both_nan = other.ne(other).logical_and(own.ne(own));
    const at::Tensor equal = other.eq(own).logical_or(both_nan);
    const at::Tensor here = other.sub(own).abs().nan_to_num(HUGE_VAL, HUGE_VAL, HUGE_VAL).masked_fill(equal, 0);
    if (!closest.defined()) {
      closest = other.clone();
      distance = here;
      continue;
    }
    const at::Tensor nearer = here.lt(distance);
    closest = at::_ops::where_self::call(nearer, other, closest);
    distance = at::_ops::where_self::call(nearer, here, distance);
  }
  return closest;
}

namespace {

// 0: finite; 1, 2: an infinity; 3: NaN. As the dtype holds the elements; complex numbers by their parts.
at::Tensor specials_of(const at::Tensor& tensor, c10::ScalarType dtype) {
  at::Tensor held = on_cpu(tensor).to(dtype);
  if (held.is_complex()) held = at::_ops::view_as_real::call(held.resolve_conj());
  if (c10::isFloat8Type(dtype)) held = held.to(at::kFloat);  // torch has no isinf of them
  const at::Tensor nan = held.isnan();
  const at::Tensor infinite = held.isinf();
  const at::Tensor sign = held.signbit().to(at::kChar);
  return nan.to(at::kChar).mul(3).add(infinite.to(at::kChar).mul(sign.add(1)));
}

}  // namespace

int64_t inexplicable_nonfinite(const at::Tensor& result, const at::Tensor& golden, const NonfiniteRuns& runs) {
  const c10::InferenceMode no_autograd;
  const c10::ScalarType dtype = result.scalar_type();
  if (result.layout() != at::kStrided || golden.sizes() != result.sizes()) return 1;
  const at::Tensor ours = specials_of(result, dtype), theirs = specials_of(golden, dtype);
  at::Tensor open = ours.ne(theirs);
  const auto explain = [&](const std::vector<at::Tensor>& others, const at::Tensor& same_as) {
    for (const at::Tensor& other : others) {
      if (other.defined() && other.sizes() == result.sizes())
        open = open.logical_and(specials_of(other, dtype).ne(same_as));
    }
  };
  explain(runs.as_result, ours);
  explain(runs.as_golden, theirs);
  return open.sum().item<int64_t>();
}

int64_t unexpected_nonfinite(const at::Tensor& result, const at::Tensor& golden, const at::Tensor& reference) {
  const c10::InferenceMode no_autograd;
  const at::Tensor a = on_cpu(result).contiguous(), b = on_cpu(golden).contiguous(), c = on_cpu(reference).contiguous();
  const DiffOptions options;
  const SumPlan plan = plan_for(a, b, options);
  if (plan.is_exact) return 0;
  return count_unexpected_nonfinite(plan, a.const_data_ptr(), b.const_data_ptr(), c.const_data_ptr(), a.numel());
}

}  // namespace op_tools
