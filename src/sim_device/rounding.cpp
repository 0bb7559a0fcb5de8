#include "sim_device/rounding.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "hooks/op_traits.h"
#include "sim_device/aliases.h"

namespace op_tools::sim_device {
namespace {

using torch::jit::Stack;

// Operators whose results turn around when all their tensors do; in each, sums then run the other way.
constexpr std::string_view kMirrorAll[] = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "vdot",
    "sum",
    "nansum",
    "mean",
    "var",
    "var_mean",
    "std",
    "std_mean",
    "norm",
    "linalg_vector_norm",
    "logsumexp",
    "prod",
    "_softmax",
    "_softmax_backward_data",
    "_log_softmax",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "native_batch_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
};
constexpr std::string_view kConversions[] = {"_foreach_copy", "_foreach_copy_"};
// Elementwise arithmetic. For 16-bit types devices compute it in float32, as the CPU does, and round once: the same
// bits.
constexpr std::string_view kArithmetic[] = {
    "add",
    "add_",
    "_foreach_add",
    "_foreach_add_",
    "sub",
    "sub_",
    "_foreach_sub",
    "_foreach_sub_",
    "mul",
    "mul_",
    "_foreach_mul",
    "_foreach_mul_",
    "div",
    "div_",
    "_foreach_div",
    "_foreach_div_",
    "addcmul",
    "addcmul_",
    "_foreach_addcmul",
    "_foreach_addcmul_",
    "addcdiv",
    "addcdiv_",
    "_foreach_addcdiv",
    "_foreach_addcdiv_",
    "lerp",
    "lerp_",
    "_foreach_lerp",
    "_foreach_lerp_",
    "sqrt",
    "sqrt_",
    "_foreach_sqrt",
    "_foreach_sqrt_",
    "reciprocal",
    "reciprocal_",
    "_foreach_reciprocal",
    "_foreach_reciprocal_",
    "rsub",
    "square",
    "square_",
    "leaky_relu",
    "leaky_relu_",
    "leaky_relu_backward",
    "native_dropout",
    "native_dropout_backward",
};
constexpr std::string_view kMirrorTwo[] = {"convolution", "convolution_backward"};

template <size_t N>
bool has(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

bool is_rounded(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor._is_zerotensor()) return false;
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexFloat:
      return true;
    default:
      return false;
  }
}

// A change of every tensor in a value; a tensor that stands twice is changed once.
template <class F>
class EachTensor {
 public:
  explicit EachTensor(F change) : change_(std::move(change)) {}

  c10::IValue operator()(const c10::IValue& value) {
    if (value.isTensor()) return changed(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(changed(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(changed(*tensor)) : std::nullopt);
      }
      return list;
    }
    return value;
  }

 private:
  at::Tensor changed(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto [known, is_new] = known_.try_emplace(tensor.unsafeGetTensorImpl());
    if (is_new) known->second = change_(tensor);
    return known->second;
  }

  F change_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> known_;
};

class Silence final : public c10::WarningHandler {  // the call gives its own warnings itself
  void process(const c10::Warning& /*warning*/) override {}
};

at::Tensor to_float64(const at::Tensor& tensor) {
  if (!is_rounded(tensor)) return tensor;
  return tensor.to(tensor.is_complex() ? at::kComplexDouble : at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

// The scalars among the arguments, in float64.
std::vector<double> numbers_in(const Stack& arguments) {
  std::vector<double> numbers;
  for (const c10::IValue& value : arguments) {
    if (value.isDouble()) numbers.push_back(value.toDouble());
  }
  return numbers;
}

uint64_t mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 31)) * 0x7fb5d329728ea185U;
  return bits ^ (bits >> 27);
}

// The neighbouring number, towards float64's.
template <class T, class Bits>
T neighbour(T value, bool up) {
  const auto bits = std::bit_cast<Bits>(value);
  const bool away_from_zero = up == (static_cast<float>(value) > 0);
  const T next = std::bit_cast<T>(static_cast<Bits>(away_from_zero ? bits + 1 : bits - 1));
  return std::isfinite(static_cast<float>(next)) ? next : value;
}

// Half of the elements that rounding changed become the neighbour on the other side of float64's number: still off by
// less than a unit in the last place where they were off by a half at most, and between the same bounds. Results that
// float64 gives as well were exact, and stay, as do zeros, infinities, NaN and numbers that the call was given.
template <class T, class Bits>
void round_otherwise(T* values, const double* exact, int64_t count, const std::vector<double>& numbers) {
  const auto was_given = [&](T value) {
    return std::any_of(numbers.begin(), numbers.end(),
                       [&](double number) { return static_cast<T>(static_cast<float>(number)) == value; });
  };
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(static_cast<float>(values[i])), off = exact[i] - value;
    // Another side of a threshold (floor, sign) is no rounding.
    constexpr double kJump = 0.01;
    if (off == 0 || value == 0 || !(std::abs(off) < kJump * std::abs(value))) continue;
    if (mixed(std::bit_cast<uint64_t>(exact[i])) % 2 == 0 || was_given(values[i])) continue;
    values[i] = neighbour<T, Bits>(values[i], off > 0);
  }
}

void round_otherwise(const at::Tensor& result, const at::Tensor& exact, const std::vector<double>& numbers) {
  if (!is_rounded(result) || !exact.defined() || result.numel() == 0 || result.sizes() != exact.sizes()) return;
  if (exact.scalar_type() != (result.is_complex() ? at::kComplexDouble : at::kDouble)) return;
  if (result.is_conj() || result.is_neg()) return;
  at::Tensor values = result.contiguous(), reference = exact.resolve_conj().resolve_neg().contiguous();
  const bool in_place = values.is_same(result);
  int64_t count = result.numel();
  if (result.is_complex()) count *= 2;
  const auto* reference_data = static_cast<const double*>(reference.const_data_ptr());
  void* data = values.mutable_data_ptr();
  switch (result.scalar_type()) {
    case at::kFloat:
    case at::kComplexFloat:
      round_otherwise<float, uint32_t>(static_cast<float*>(data), reference_data, count, numbers);
      break;
    case at::kHalf:
      round_otherwise<c10::Half, uint16_t>(static_cast<c10::Half*>(data), reference_data, count, numbers);
      break;
    default:
      round_otherwise<c10::BFloat16, uint16_t>(static_cast<c10::BFloat16*>(data), reference_data, count, numbers);
  }
  if (!in_place) result.copy_(values);
}

}  // namespace

OtherRounding::OtherRounding(const c10::OperatorHandle& op, std::vector<size_t> written, bool may_run_again)
    : written_(std::move(written)) {
  const std::string& full = op.operator_name().name;
  const std::string_view name = base_name(full);
  // Kernels of other libraries may count their calls; a random kernel would draw twice; a step to the next number of
  // the dtype is another step in float64; a conversion is rounded to nearest everywhere.
  runs_again_ = may_run_again && full.starts_with("aten::") && !op.hasTag(at::Tag::nondeterministic_seeded) &&
                !has_trait(name, OpTrait::kChangesMemory) && !has_trait(name, OpTrait::kJumps) &&
                !has_trait(name, OpTrait::kStepsByDtype) && !has(kConversions, name);
  is_arithmetic_ = has(kArithmetic, name);
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dtype" || arguments[i].name() == "out_dtype") dtypes_.push_back(i);
  }
  const auto& returns = op.schema().returns();
  const bool gives_arguments = std::any_of(returns.begin(), returns.end(),
                                           [](const c10::Argument& result) { return result.alias_info() != nullptr; });
  if (runs_again_ && !gives_arguments && !returns.empty()) {
    if (has(kMirrorAll, name)) mirror_ = Mirror::kAll;
    if (has(kMirrorTwo, name)) mirror_ = Mirror::kTwo;
  }
}

Stack OtherRounding::in_float64(const Stack& arguments) const {
  EachTensor convert(to_float64);
  Stack wide;
  wide.reserve(arguments.size());
  for (const c10::IValue& value : arguments) wide.push_back(convert(value));
  for (const size_t i : dtypes_) {
    if (!wide[i].isInt()) continue;
    const auto type = static_cast<at::ScalarType>(wide[i].toInt());
    if (c10::isFloatingType(type)) wide[i] = static_cast<int64_t>(at::kDouble);
    if (c10::isComplexType(type)) wide[i] = static_cast<int64_t>(at::kComplexDouble);
  }
  return wide;
}

void OtherRounding::redispatch_mirrored(const c10::OperatorHandle& op, const CpuKernel& kernel, Stack& stack) const {
  const auto turn = [this](const at::Tensor& tensor) {
    if (tensor.dim() == 0) return tensor;
    std::vector<int64_t> dims(
        static_cast<size_t>(mirror_ == Mirror::kTwo ? std::min<int64_t>(2, tensor.dim()) : tensor.dim()));
    std::iota(dims.begin(), dims.end(), 0);
    return at::flip(tensor, dims);
  };
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  EachTensor turned(turn);
  Stack arguments;
  for (const c10::IValue& value : stack) arguments.push_back(turned(value));
  for (const size_t i : written_) {
    const std::vector<at::Tensor> originals = tensors_in(stack[i]), copies = tensors_in(arguments[i]);
    for (size_t k = 0; k < originals.size(); ++k) {
      if (originals[k].defined() && originals[k].dim() > 0) written.emplace_back(originals[k], copies[k]);
    }
  }
  kernel.redispatch(op, &arguments);
  for (const auto& [original, copy] : written) original.copy_(turn(copy));
  EachTensor back(turn);
  for (c10::IValue& value : arguments) value = back(value);
  stack = std::move(arguments);
}

void OtherRounding::redispatch(const c10::OperatorHandle& op, const CpuKernel& kernel, Stack& stack) const {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack) {
    for (at::Tensor& tensor : tensors_in(value)) tensors.push_back(std::move(tensor));
  }
  const auto computes = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.layout() == c10::kStrided && (tensor.is_floating_point() || tensor.is_complex());
  };
  if (!runs_again_ || std::none_of(tensors.begin(), tensors.end(), computes)) {
    kernel.redispatch(op, &stack);
    return;
  }
  // Before the call, which may write its inputs.
  Stack exact;
  std::vector<at::Tensor> written, written_exact;
  if (std::any_of(tensors.begin(), tensors.end(), is_rounded)) {
    try {
      static Silence silence;
      const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
      exact = in_float64(stack);
      for (const size_t i : written_) {
        for (const at::Tensor& tensor : tensors_in(exact[i])) written_exact.push_back(tensor);
        for (const at::Tensor& tensor : tensors_in(stack[i])) written.push_back(tensor);
      }
      kernel.redispatch(op, &exact);
    } catch (const std::exception&) {  // no kernel for float64: the call's result stays as it is
      exact.clear();
      written.clear();
    }
  }
  const std::vector<double> numbers = numbers_in(stack);
  if (mirror_ == Mirror::kNone) {
    kernel.redispatch(op, &stack);
  } else {
    redispatch_mirrored(op, kernel, stack);
  }
  std::vector<const void*> rounded;  // a result may be an argument
  const auto round = [&](const at::Tensor& result, const at::Tensor& reference) {
    if (!result.defined() || std::find(rounded.begin(), rounded.end(), result.unsafeGetTensorImpl()) != rounded.end()) {
      return;
    }
    rounded.push_back(result.unsafeGetTensorImpl());
    // A device that computes in float32 rounds a sum to 16 bits once, too.
    if ((is_arithmetic_ || mirror_ != Mirror::kNone) && is_16_bit(result)) return;
    round_otherwise(result, reference, numbers);
  };
  for (size_t i = 0; i < written.size(); ++i) round(written[i], written_exact[i]);
  for (size_t i = 0; i < stack.size() && i < exact.size(); ++i) {
    const std::vector<at::Tensor> results = tensors_in(stack[i]), references = tensors_in(exact[i]);
    for (size_t k = 0; k < results.size() && k < references.size(); ++k) round(results[k], references[k]);
  }
}

}  // namespace op_tools::sim_device
