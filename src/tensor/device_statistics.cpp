#include "tensor/device_statistics.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/aminmax_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_right_shift_ops.h>
#include <ATen/ops/bitwise_xor_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/isinf_ops.h>
#include <ATen/ops/isnan_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_as_complex_ops.h>
#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/element_hash.h"

namespace op_tools::device_statistics {
namespace {

at::Tensor count(const at::Tensor& flags) {
  return at::_ops::sum::call(flags, at::kLong);
}

// Tables on a device, made once. A column more than projections gives the plain sum.
class DeviceTables {
 public:
  static constexpr int64_t kColumns = sign_pattern::kProjections + 1;
  static constexpr int64_t kMostPlaces = int64_t{1} << 18;

  static DeviceTables& get() {
    static DeviceTables* tables = new DeviceTables;  // leaked: devices may be gone at static destruction
    return *tables;
  }

  // The signs of the elements of a block, without that of the block itself.
  at::Tensor elements(c10::Device device) {
    return table<double>(elements_, device, sign_pattern::kBlock, kColumns, [](int64_t i) {
      return sign(i, sign_pattern::element_sign) * sign(i % kColumns, sign_pattern::block_sign);
    });
  }
  // With that of the first element.
  at::Tensor first_elements(c10::Device device, int64_t count) {
    return table<double>(first_, device, sign_pattern::kBlock, kColumns,
                         [](int64_t i) { return sign(i, sign_pattern::element_sign); })
        .narrow(0, 0, count);
  }
  at::Tensor blocks(c10::Device device, int64_t count) {
    return table<double>(blocks_, device, count, kColumns, [](int64_t i) { return sign(i, sign_pattern::block_sign); });
  }
  at::Tensor keys(c10::Device device) {
    return table<int64_t>(keys_, device, 1, element_hash::kWords,
                          [](int64_t i) { return static_cast<int64_t>(element_hash::kKeys[static_cast<size_t>(i)]); });
  }
  // The terms that the hash adds to the sums of columns.
  at::Tensor places(c10::Device device, int64_t count) {
    return table<int64_t>(
               places_, device, count, 1,
               [](int64_t i) { return static_cast<int64_t>(static_cast<uint64_t>(i + 1) * element_hash::kMixPlace); })
        .view({-1});
  }
  // In the order of their words.
  at::Tensor special_values(c10::Device device) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return table<double>(special_, device, 1, 3, [](int64_t i) {
      return i == 0 ? 0 : i == 1 ? kInfinity : -kInfinity;
    });
  }
  at::Tensor zero(c10::Device device) { return special_values(device).narrow(1, 0, 1).view({1}); }

 private:
  using Tables = std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, at::Tensor>;

  // Of an item of a table with kColumns columns.
  static double sign(int64_t item, double (*sign_of)(int64_t, int64_t)) {
    const int64_t column = item % kColumns;
    return column < sign_pattern::kProjections ? sign_of(column, item / kColumns) : 1;
  }

  template <class T>
  at::Tensor table(Tables& tables, c10::Device device, int64_t rows, int64_t columns,
                   const std::function<T(int64_t)>& item) {
    std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor& known = tables[{device.type(), device.index()}];
    if (!known.defined() || known.size(0) < rows) {
      int64_t size = 1;
      while (size < rows) size *= 2;
      const at::Tensor on_host = at::_ops::empty_memory_format::call(
          c10::SymIntArrayRef({c10::SymInt(size), c10::SymInt(columns)}), c10::CppTypeToScalarType<T>::value,
          std::nullopt, c10::Device(at::kCPU), std::nullopt, std::nullopt);
      auto* const items = on_host.mutable_data_ptr<T>();
      for (int64_t i = 0; i < size * columns; ++i) items[i] = item(i);
      known = on_host.to(device);
    }
    return known.size(0) == rows ? known : known.narrow(0, 0, rows);
  }

  std::mutex mutex_;
  Tables elements_, first_, blocks_, keys_, places_, special_;
};

int64_t rounded_up(int64_t number, int64_t to) {
  return (number + to - 1) / to * to;
}

// The real numbers of a tensor in the order of their indices (of complex ones both parts), filled up with zeros: to
// whole chunks of the hash, and to whole blocks where there are several.
struct FilledUp {
  explicit FilledUp(const at::Tensor& tensor) {
    at::Tensor dense = tensor.contiguous();
    if (dense.is_complex()) dense = at::_ops::view_as_real::call(dense);
    const c10::ScalarType dtype = dense.scalar_type();
    at::Tensor flat = at::_ops::view::call(dense, c10::SymIntArrayRef(c10::SymInt(-1)));
    const int64_t element = flat.element_size(), per_chunk = element_hash::kChunkBytes / element;
    count = flat.numel();
    const int64_t chunks = rounded_up(count, per_chunk);
    const int64_t size = count <= sign_pattern::kBlock ? chunks : rounded_up(count, sign_pattern::kBlock);
    // By integers: a device that has no zeros of eight bits has none to fill up with.
    const c10::ScalarType integer = element == 1   ? at::kChar
                                    : element == 2 ? at::kShort
                                    : element == 4 ? at::kInt
                                                   : at::kLong;
    flat = at::_ops::view_dtype::call(flat, integer);
    if (size > count) {
      flat = at::_ops::constant_pad_nd::call(flat, c10::SymIntArrayRef({c10::SymInt(0), c10::SymInt(size - count)}), 0);
    } else if (flat.storage_offset() * element % element_hash::kWordBytes != 0) {
      flat = flat.clone();  // words begin at multiples of eight bytes
    }
    words = at::_ops::view_dtype::call(flat.narrow(0, 0, chunks), at::kLong).view({-1, element_hash::kWords});
    numbers = at::_ops::view_dtype::call(flat, dtype);
    if (c10::isFloatingType(dtype) && element == 1) numbers = numbers.to(at::kFloat);
    numbers = numbers.to(at::kDouble);
  }

  int64_t count = 0;   // of the numbers
  at::Tensor words;    // for the hash: of eight bytes, a row for each chunk
  at::Tensor numbers;  // float64
};

// The same sum as element_hash::sum_of(), by the device's operators.
at::Tensor hash_on_device(const at::Tensor& words) {
  const c10::Device device = words.device();
  const auto times = [](const at::Tensor& word, uint64_t factor) {
    return at::_ops::mul_Scalar::call(word, static_cast<int64_t>(factor));
  };
  const auto shifted = [](const at::Tensor& word, int64_t by) {
    return at::_ops::bitwise_right_shift_Tensor_Scalar::call(word, by);
  };
  const auto low = [](const at::Tensor& word) { return at::_ops::bitwise_and_Scalar::call(word, 0xFFFFFFFF); };
  const auto folded = [&](const at::Tensor& word, int64_t by) {
    return at::_ops::bitwise_xor_Tensor::call(word, shifted(word, by));
  };
  const at::Tensor keyed = at::_ops::bitwise_xor_Tensor::call(words, DeviceTables::get().keys(device));
  const at::Tensor products = at::_ops::mul_Tensor::call(low(keyed), low(shifted(keyed, 32)));
  const at::Tensor rows = at::_ops::add_Tensor::call(products, words, 1).view({-1, 8, element_hash::kColumns});
  const at::Tensor columns =
      at::_ops::sum_dim_IntList::call(rows, at::OptionalIntArrayRef({1}), false, at::kLong).view({-1});
  const int64_t count = columns.numel();
  const auto made_places = [&] {
    return times(at::_ops::arange_start::call(1, count + 1, at::kLong, std::nullopt, device, std::nullopt),
                 element_hash::kMixPlace);
  };
  const at::Tensor places =
      count <= DeviceTables::kMostPlaces ? DeviceTables::get().places(device, count) : made_places();
  const at::Tensor placed = at::_ops::add_Tensor::call(places, columns, static_cast<int64_t>(element_hash::kMixWord));
  return at::_ops::sum::call(folded(times(folded(placed, 32), element_hash::kMixWord), 29), at::kLong);
}

// Zero in place of NaN and of numbers larger than kMost.
at::Tensor without_large(const at::Tensor& numbers) {
  const at::Tensor kept = at::_ops::le_Scalar::call(at::_ops::abs::call(numbers), sign_pattern::kMost);
  return at::_ops::where_self::call(kept, numbers, DeviceTables::get().zero(numbers.device()));
}

// The projections, then the plain sum. `numbers`: whole blocks, or a part of a block.
at::Tensor sums_on_device(const at::Tensor& numbers) {
  constexpr int64_t kBlock = sign_pattern::kBlock;
  const c10::Device device = numbers.device();
  DeviceTables& tables = DeviceTables::get();
  const int64_t numel = numbers.numel(), blocks = numel / kBlock;
  if (blocks <= 1) {
    return at::_ops::mm::call(numbers.view({1, numel}), tables.first_elements(device, numel)).view({-1});
  }
  const at::Tensor sums = at::_ops::mm::call(numbers.view({blocks, kBlock}), tables.elements(device));
  const at::Tensor turned = at::_ops::mul_Tensor::call(sums, tables.blocks(device, blocks));
  return at::_ops::sum_dim_IntList::call(turned, at::OptionalIntArrayRef({0}), false, at::kDouble);
}

// How many are zero, infinite, minus infinite.
at::Tensor special_on_device(const at::Tensor& numbers) {
  if (numbers.is_complex()) {
    const at::Tensor zero = count(at::_ops::eq_Scalar::call(numbers, 0));
    return at::_ops::stack::call({zero, count(at::_ops::isinf::call(numbers)), zero}, 0);
  }
  const at::Tensor flags =
      at::_ops::eq_Tensor::call(numbers.view({-1, 1}), DeviceTables::get().special_values(numbers.device()));
  return at::_ops::sum_dim_IntList::call(flags, at::OptionalIntArrayRef({0}), false, at::kLong);
}

}  // namespace

at::Tensor resolved(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
}

// In as few operators as torch's can do it: each is a kernel to launch.
at::Tensor words_of(const at::Tensor& any_tensor) {
  const at::Tensor tensor = resolved(any_tensor);
  const FilledUp all(tensor);
  const at::Tensor parts = all.numbers.narrow(0, 0, all.count);
  const at::Tensor numbers = tensor.is_complex() ? at::_ops::view_as_complex::call(parts.view({-1, 2})) : parts;
  const at::Tensor sizes = tensor.is_complex() ? at::_ops::abs::call(numbers) : numbers;
  const auto [least, most] = at::_ops::aminmax::call(sizes, std::nullopt, false);
  const at::Tensor norm = at::_ops::linalg_vector_norm::call(parts, 2, std::nullopt, false, std::nullopt);
  const bool may_be_large = c10::isFloatingType(tensor.scalar_type()) || tensor.is_complex();
  const at::Tensor sums = sums_on_device(may_be_large ? without_large(all.numbers) : all.numbers);
  const at::Tensor projections = sums.narrow(0, 0, sign_pattern::kProjections);
  const at::Tensor sum =
      may_be_large ? at::_ops::sum::call(sizes, at::kDouble) : sums.narrow(0, sign_pattern::kProjections, 1);
  const at::Tensor nan = count(at::_ops::isnan::call(numbers));
  at::Tensor exact_least = nan, exact_most = nan;
  if (tensor.scalar_type() == c10::ScalarType::Long) {
    std::tie(exact_least, exact_most) = at::_ops::aminmax::call(tensor, std::nullopt, false);
  }
  std::vector<at::Tensor> words{
      least,       most,      norm, projections, sum, nan, special_on_device(numbers), hash_on_device(all.words),
      exact_least, exact_most};
  for (at::Tensor& word : words) word = at::_ops::view_dtype::call(word.view({-1}), at::kLong);
  return at::_ops::cat::call(words, 0);
}

}  // namespace op_tools::device_statistics
