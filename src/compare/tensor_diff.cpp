#include "compare/tensor_diff.h"

#include <ATen/ops/zeros_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <type_traits>

namespace op_tools {
namespace {

template <class T>
constexpr bool kIsComplex = c10::is_complex<T>::value;

// Elements of eight- and sixteen-bit floats are widened, so that all arithmetic below is in double
// or in integers.
template <class T>
auto widened(const T& element) {
  if constexpr (kIsComplex<T>) {
    return c10::complex<double>(static_cast<double>(element.real()), static_cast<double>(element.imag()));
  } else if constexpr (std::is_integral_v<T>) {
    return element;
  } else {
    return static_cast<double>(element);
  }
}

std::string text_of(double value) {
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, written.ptr};
}

template <class W>
std::string text_of_element(const W& value) {
  if constexpr (kIsComplex<W>) {
    return "(" + text_of(value.real()) + ", " + text_of(value.imag()) + ")";
  } else if constexpr (std::is_same_v<W, bool>) {
    return value ? "True" : "False";
  } else if constexpr (std::is_integral_v<W>) {
    return std::to_string(value);
  } else {
    return text_of(value);
  }
}

bool same_or_both_nan(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

template <class W>
bool is_nan(const W& value) {
  if constexpr (kIsComplex<W>)
    return std::isnan(value.real()) || std::isnan(value.imag());
  else
    return std::isnan(value);
}
template <class W>
bool is_inf(const W& value) {
  if constexpr (kIsComplex<W>)
    return std::isinf(value.real()) || std::isinf(value.imag());
  else
    return std::isinf(value);
}
template <class W>
void count_nonfinite(const W& value, NonFinite* counts) {
  if (is_nan(value)) {
    ++counts->nan;
    return;
  }
  double part = 0;
  if constexpr (kIsComplex<W>)
    part = std::isinf(value.real()) ? value.real() : value.imag();
  else
    part = value;
  ++(part > 0 ? counts->pos_inf : counts->neg_inf);
}

template <class W>
bool equal(const W& a, const W& b) {
  if constexpr (kIsComplex<W>) {
    return same_or_both_nan(a.real(), b.real()) && same_or_both_nan(a.imag(), b.imag());
  } else if constexpr (std::is_integral_v<W>) {
    return a == b;
  } else {
    return same_or_both_nan(a, b);
  }
}

// |a - b| of finite elements. Integers are subtracted as unsigned numbers: no overflow, no wrap.
template <class W>
double distance(const W& a, const W& b) {
  if constexpr (kIsComplex<W>) {
    return std::hypot(a.real() - b.real(), a.imag() - b.imag());
  } else if constexpr (std::is_integral_v<W>) {
    return static_cast<double>(a > b ? static_cast<uint64_t>(a) - static_cast<uint64_t>(b)
                                     : static_cast<uint64_t>(b) - static_cast<uint64_t>(a));
  } else {
    return std::fabs(a - b);
  }
}

template <class W>
double magnitude(const W& value) {
  if constexpr (kIsComplex<W>)
    return std::hypot(value.real(), value.imag());
  else
    return std::fabs(static_cast<double>(value));
}

template <class W>
long double dot(const W& a, const W& b) {
  if constexpr (kIsComplex<W>) {
    return static_cast<long double>(a.real()) * b.real() + static_cast<long double>(a.imag()) * b.imag();
  } else {
    return static_cast<long double>(a) * static_cast<long double>(b);
  }
}

std::vector<int64_t> unravel(int64_t position, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    index[i] = position % sizes[i];
    position /= sizes[i];
  }
  return index;
}

template <class T>
void accumulate(const at::Tensor& result_tensor, const at::Tensor& golden_tensor, Tolerance tolerance,
                TensorDiff* diff) {
  const T* results = static_cast<const T*>(result_tensor.const_data_ptr());
  const T* goldens = static_cast<const T*>(golden_tensor.const_data_ptr());
  using Wide = decltype(widened(*results));
  constexpr bool kExact = std::is_integral_v<Wide>;

  const int64_t numel = golden_tensor.numel();
  // Products of two doubles overflow a double, not a long double.
  long double abs_sum = 0, product = 0, result_square = 0, golden_square = 0;
  double worst = 0;
  int64_t worst_at = -1;
  for (int64_t i = 0; i < numel; ++i) {
    const Wide result = widened(results[i]);
    const Wide golden = widened(goldens[i]);
    bool finite = true;
    if constexpr (!kExact) {
      const bool result_special = is_nan(result) || is_inf(result);
      const bool golden_special = is_nan(golden) || is_inf(golden);
      if (result_special) count_nonfinite(result, &diff->result);
      if (golden_special) count_nonfinite(golden, &diff->golden);
      finite = !result_special && !golden_special;
    }
    double difference = 0;
    if (finite) {
      const double golden_size = magnitude(golden);
      product += dot(result, golden);
      result_square += dot(result, result);
      golden_square += dot(golden, golden);
      if (equal(result, golden)) continue;
      difference = distance(result, golden);
      abs_sum += difference;
      diff->max_abs = std::max(diff->max_abs, difference);
      diff->max_rel =
          std::max(diff->max_rel, golden_size > 0 ? difference / golden_size : std::numeric_limits<double>::infinity());
      if (kExact || difference > tolerance.atol + tolerance.rtol * golden_size) ++diff->outside;
    } else {
      if (equal(result, golden)) continue;
      difference = std::numeric_limits<double>::infinity();
      ++diff->nonfinite_mismatches;
      ++diff->outside;
    }
    if (worst_at < 0 || difference > worst) {
      worst = difference;
      worst_at = i;
    }
  }
  diff->numel = numel;
  if (numel > 0) diff->mean_abs = static_cast<double>(abs_sum / static_cast<long double>(numel));
  if (result_square > 0 && golden_square > 0) {
    diff->cosine = static_cast<double>(product / (std::sqrt(result_square) * std::sqrt(golden_square)));
  } else {
    diff->cosine = result_square == golden_square ? 1 : 0;
  }
  if (worst_at >= 0) {
    diff->has_worst = true;
    diff->worst_index = unravel(worst_at, golden_tensor.sizes());
    diff->worst_result = text_of_element(widened(results[worst_at]));
    diff->worst_golden = text_of_element(widened(goldens[worst_at]));
  }
  const size_t bytes = static_cast<size_t>(numel) * sizeof(T);
  diff->bits_equal = bytes == 0 || std::memcmp(results, goldens, bytes) == 0;
}

TensorDiff different_structure(std::string_view what, const std::string& result, const std::string& golden) {
  TensorDiff diff;
  diff.bits_equal = false;
  diff.structure = std::string(what) + " " + result + ", expected " + golden;
  return diff;
}

template <class T>
std::string printed(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

TensorDiff diff_dense(const at::Tensor& result, const at::Tensor& golden, Tolerance tolerance) {
  const auto plain = [](const at::Tensor& tensor) {
    // Autograd's zero tensors stand for zeros and have no memory.
    if (tensor._is_zerotensor()) {
      return at::_ops::zeros::call(tensor.sym_sizes(), tensor.scalar_type(), at::kStrided, c10::Device(c10::kCPU),
                                   false);
    }
    return tensor.resolve_conj().resolve_neg().to(c10::kCPU).contiguous();
  };
  const at::Tensor a = plain(result);
  const at::Tensor b = plain(golden);
  TensorDiff diff;
  switch (b.scalar_type()) {
#define OP_TOOLS_CASE(type, name)             \
  case c10::ScalarType::name:                 \
    accumulate<type>(a, b, tolerance, &diff); \
    break;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OP_TOOLS_CASE)
    OP_TOOLS_CASE(uint16_t, UInt16)
    OP_TOOLS_CASE(uint32_t, UInt32)
    OP_TOOLS_CASE(uint64_t, UInt64)
#undef OP_TOOLS_CASE
    default:
      diff.bits_equal = false;
      diff.structure = "dtype " + printed(b.scalar_type()) + " cannot be compared by element";
  }
  return diff;
}

// The dense tensors that a sparse one consists of: indices, then values.
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

TensorDiff diff_sparse(const at::Tensor& result, const at::Tensor& golden, Tolerance tolerance) {
  const auto result_parts = parts_of(result);
  const auto golden_parts = parts_of(golden);
  bool same_pattern = true;
  for (size_t i = 0; i + 1 < golden_parts.size() && same_pattern; ++i) {
    same_pattern = result_parts[i].sizes() == golden_parts[i].sizes() &&
                   diff_dense(result_parts[i], golden_parts[i], {}).bits_equal;
  }
  if (same_pattern) return diff_dense(result_parts.back(), golden_parts.back(), tolerance);
  // A zero that one side stores and the other leaves out is no difference.
  TensorDiff diff = diff_dense(result.to_dense(), golden.to_dense(), tolerance);
  diff.bits_equal = false;
  return diff;
}

}  // namespace

TensorDiff diff_tensors(const at::Tensor& result, const at::Tensor& golden, Tolerance tolerance) {
  if (!result.defined() || !golden.defined()) {
    if (!result.defined() && !golden.defined()) return {};
    return different_structure("", result.defined() ? "a tensor" : "no tensor",
                               golden.defined() ? "a tensor" : "no tensor");
  }
  if (result.sizes() != golden.sizes()) {
    return different_structure("shape", printed(result.sizes()), printed(golden.sizes()));
  }
  if (result.scalar_type() != golden.scalar_type()) {
    return different_structure("dtype", printed(result.scalar_type()), printed(golden.scalar_type()));
  }
  if (result.layout() != golden.layout()) {
    return different_structure("layout", printed(result.layout()), printed(golden.layout()));
  }
  const c10::InferenceMode no_autograd;
  if (golden.layout() == at::kStrided) return diff_dense(result, golden, tolerance);
  if (golden.layout() == at::kMkldnn) {
    return diff_dense(result.to_dense(), golden.to_dense(), tolerance);
  }
  return diff_sparse(result, golden, tolerance);
}

}  // namespace op_tools
