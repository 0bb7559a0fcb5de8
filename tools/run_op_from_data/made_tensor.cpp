#include "run_op_from_data/made_tensor.h"

#include <ATen/ops/empty_ops.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace op_tools::replay {
namespace {

// In the order in which a single number among the elements decides on the dtype of all.
enum class Kind : uint8_t { kNone, kBool, kWhole, kReal, kComplex };

struct Numbers {
  std::vector<int64_t> sizes;
  std::vector<c10::complex<double>> as_complex;  // also of real numbers: exact
  std::vector<int64_t> whole;                    // 0 for numbers that are none
  Kind kind = Kind::kNone;

  void add(const Value& value, size_t depth) {
    if (const Values* items = value.is<Set>() ? nullptr : sequence_items(value)) return add_all(*items, depth);
    if (const auto* size = value.get_if<Size>()) return add_all(Values(size->sizes.begin(), size->sizes.end()), depth);
    if (depth != sizes.size()) throw Error("numbers stand beside lists");
    if (const auto* flag = value.get_if<bool>()) {
      push(Kind::kBool, static_cast<double>(*flag), *flag);
    } else if (const auto* number = value.get_if<int64_t>()) {
      push(Kind::kWhole, static_cast<double>(*number), *number);
    } else if (const auto* real = value.get_if<double>()) {
      push(Kind::kReal, *real, 0);
    } else if (const auto* pair = value.get_if<c10::complex<double>>()) {
      push(Kind::kComplex, *pair, 0);
    } else {
      throw Error("its data holds something else than numbers");
    }
  }

 private:
  void add_all(const Values& items, size_t depth) {
    const auto size = static_cast<int64_t>(items.size());
    if (depth == sizes.size()) {
      if (kind != Kind::kNone) throw Error("lists stand beside numbers");
      sizes.push_back(size);
    }
    if (sizes[depth] != size) throw Error("its lists have different lengths");
    for (const Value& item : items) add(item, depth + 1);
  }
  void push(Kind of, c10::complex<double> number, int64_t exact) {
    kind = std::max(kind, of);
    as_complex.push_back(number);
    whole.push_back(exact);
  }
};

at::Tensor empty_on_cpu(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return at::_ops::empty_memory_format::call(c10::fromIntArrayRefSlow(sizes), dtype, at::kStrided, at::kCPU,
                                             std::nullopt, std::nullopt);
}

template <class T, class Items>
at::Tensor filled(const std::vector<int64_t>& sizes, at::ScalarType dtype, const Items& items) {
  at::Tensor tensor = empty_on_cpu(sizes, dtype);
  std::transform(items.begin(), items.end(), tensor.mutable_data_ptr<T>(), [](const auto& item) {
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, c10::complex<double>> && std::is_same_v<T, double>) {
      return item.real();
    } else {
      return static_cast<T>(item);
    }
  });
  return tensor;
}

// In the widest dtype of its kind, and Python's dtype where none is given.
std::pair<at::Tensor, at::ScalarType> tensor_of(const Numbers& numbers) {
  const at::ScalarType real = c10::typeMetaToScalarType(c10::get_default_dtype());
  switch (numbers.kind) {
    case Kind::kBool:
      return {filled<bool>(numbers.sizes, at::kBool, numbers.whole), at::kBool};
    case Kind::kWhole:
      return {filled<int64_t>(numbers.sizes, at::kLong, numbers.whole), at::kLong};
    case Kind::kComplex:
      return {filled<c10::complex<double>>(numbers.sizes, at::kComplexDouble, numbers.as_complex),
              c10::toComplexType(real)};
    case Kind::kReal:
    case Kind::kNone:
      break;
  }
  return {filled<double>(numbers.sizes, at::kDouble, numbers.as_complex), real};
}

std::optional<c10::Device> device_of(const Value& value) {
  if (const auto* device = value.get_if<c10::Device>()) return *device;
  if (const auto* text = value.get_if<std::string>()) return c10::Device(*text);
  if (!value.is<None>()) throw Error("its device has no form here");
  return std::nullopt;
}

}  // namespace

at::Tensor made_tensor(const Values& args, const Keywords& keywords) {
  const Value* data = args.size() == 1 ? args.data() : nullptr;
  std::optional<at::ScalarType> dtype;
  std::optional<c10::Device> device;
  bool requires_grad = false;
  for (const auto& [name, value] : keywords) {
    if (name == "data" && args.empty()) {
      data = &value;
    } else if (name == "dtype") {
      if (const auto* type = value.get_if<at::ScalarType>()) dtype = *type;
    } else if (name == "device") {
      device = device_of(value);
    } else if (name == "requires_grad" && value.is<bool>()) {
      requires_grad = *value.get_if<bool>();
    } else if (!(name == "pin_memory" && value.is<bool>() && !*value.get_if<bool>())) {
      throw Error("the argument " + name + " has no form here");
    }
  }
  if (!data) throw Error("it has no data");
  at::Tensor from;
  if (const auto* tensor = data->get_if<at::Tensor>()) {
    from = tensor->detach();
  } else {
    Numbers numbers;
    numbers.add(*data, 0);
    const auto [from_numbers, by_default] = tensor_of(numbers);
    from = from_numbers;
    if (!dtype) dtype = by_default;
  }
  const auto options = from.options().dtype(dtype.value_or(from.scalar_type())).device(device.value_or(from.device()));
  at::Tensor copy = from.to(options, /*non_blocking=*/false, /*copy=*/true);
  return copy.set_requires_grad(requires_grad);
}

}  // namespace op_tools::replay
