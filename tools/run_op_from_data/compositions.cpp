#include "run_op_from_data/compositions.h"

#include <ATen/ops/feature_dropout.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <array>
#include <optional>
#include <utility>

#include "base/error.h"

namespace op_tools::replay {
namespace {

template <class T>
const T& argument_as(const Keywords& arguments, size_t index) {
  const auto& [name, value] = arguments.at(index);
  if (const T* typed = value.get_if<T>()) return *typed;
  throw Error("the argument " + name + " has no form here");
}

const at::Tensor& tensor(const Keywords& arguments, size_t index) {
  return argument_as<at::Tensor>(arguments, index);
}

at::Scalar number(const Keywords& arguments, size_t index) {
  const Value& value = arguments.at(index).second;
  if (const auto* whole = value.get_if<int64_t>()) return *whole;
  if (const auto* pair = value.get_if<c10::complex<double>>()) return *pair;
  if (const auto* flag = value.get_if<bool>()) return *flag;
  return argument_as<double>(arguments, index);
}

Value divided_by(const Keywords& arguments) {
  const at::Tensor reciprocal = tensor(arguments, 0).reciprocal();
  if (const auto* other = arguments.at(1).second.get_if<at::Tensor>()) return reciprocal.mul(*other);
  return reciprocal.mul(number(arguments, 1));
}

Value softmin(const Keywords& arguments) {
  std::optional<at::ScalarType> dtype;
  if (!arguments.at(2).second.is<None>()) dtype = argument_as<at::ScalarType>(arguments, 2);
  return tensor(arguments, 0).neg().softmax(argument_as<int64_t>(arguments, 1), dtype);
}

Value softsign(const Keywords& arguments) {
  const at::Tensor& input = tensor(arguments, 0);
  return input.div(input.abs().add(1));
}

Value tanhshrink(const Keywords& arguments) {
  const at::Tensor& input = tensor(arguments, 0);
  return input.sub(input.tanh());
}

Value normalize(const Keywords& arguments) {
  const at::Tensor& input = tensor(arguments, 0);
  const int64_t dim = argument_as<int64_t>(arguments, 2);
  const at::Tensor norm = at::linalg_vector_norm(input, number(arguments, 1), dim, /*keepdim=*/true);
  return input.div(norm.clamp_min(number(arguments, 3)).expand_as(input));
}

// With a batch, or without.
Value dropout3d(const Keywords& arguments) {
  const at::Tensor& input = tensor(arguments, 0);
  const bool batched = input.dim() == 5;
  const at::Tensor dropped = at::feature_dropout(batched ? input : input.unsqueeze(0), number(arguments, 1).toDouble(),
                                                 argument_as<bool>(arguments, 2));
  return batched ? dropped : dropped.squeeze(0);
}

constexpr std::array<std::pair<std::string_view, Composition>, 6> kCompositions{{{"divided_by", &divided_by},
                                                                                 {"dropout3d", &dropout3d},
                                                                                 {"normalize", &normalize},
                                                                                 {"softmin", &softmin},
                                                                                 {"softsign", &softsign},
                                                                                 {"tanhshrink", &tanhshrink}}};

}  // namespace

Composition composition(std::string_view name) {
  for (const auto& [known, run] : kCompositions) {
    if (known == name) return run;
  }
  return nullptr;
}

}  // namespace op_tools::replay
