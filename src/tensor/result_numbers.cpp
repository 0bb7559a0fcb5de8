#include "tensor/result_numbers.h"

#include <ATen/ops/empty_ops.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <vector>

namespace op_tools {
namespace {

// False: there is something else, too.
bool add_numbers(const Value& value, std::vector<c10::Scalar>* numbers) {
  if (const auto* flag = value.get_if<bool>()) {
    numbers->emplace_back(*flag);
  } else if (const auto* whole = value.get_if<int64_t>()) {
    numbers->emplace_back(*whole);
  } else if (const auto* real = value.get_if<double>()) {
    numbers->emplace_back(*real);
  } else if (const auto* complex = value.get_if<c10::complex<double>>()) {
    numbers->emplace_back(*complex);
  } else {
    const Values* const items = sequence_items(value);
    return items &&
           std::all_of(items->begin(), items->end(), [&](const Value& item) { return add_numbers(item, numbers); });
  }
  return true;
}

template <class Number>
void fill(const at::Tensor& tensor, const std::vector<c10::Scalar>& numbers) {
  auto* const elements = static_cast<Number*>(tensor.mutable_data_ptr());
  std::transform(numbers.begin(), numbers.end(), elements,
                 [](const c10::Scalar& number) { return number.to<Number>(); });
}

}  // namespace

at::Tensor result_numbers(const Value& result, c10::ScalarType dtype) {
  std::vector<c10::Scalar> numbers;
  if (!add_numbers(result, &numbers) || numbers.empty()) return {};
  c10::ScalarType widest = at::kBool;
  for (const c10::Scalar& number : numbers) widest = c10::promoteTypes(widest, number.type());
  std::vector<c10::SymInt> sizes;
  if (sequence_items(result)) sizes.emplace_back(static_cast<int64_t>(numbers.size()));
  const at::Tensor tensor = at::_ops::empty_memory_format::call(sizes, widest, at::kStrided, c10::Device(at::kCPU),
                                                                std::nullopt, std::nullopt);
  switch (widest) {
    case at::kBool:
      fill<bool>(tensor, numbers);
      return tensor;
    case at::kLong:
      fill<int64_t>(tensor, numbers);
      return tensor;
    case at::kDouble:
      fill<double>(tensor, numbers);
      return tensor.to(dtype);
    default:
      fill<c10::complex<double>>(tensor, numbers);
      return tensor;
  }
}

}  // namespace op_tools
