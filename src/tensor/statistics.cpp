#include "tensor/statistics.h"

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
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/view_ops.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "tensor/element_hash.h"
#include "tensor/element_sums.h"
#include "tensor/merged_dims.h"
#include "tensor/plain_tensor.h"

namespace op_tools {
namespace {

// The words that come from a device: doubles by their bits, then integers.
enum Word : size_t {
  kMin,
  kMax,
  kMean,
  kNorm,
  kProjection,
  kNan = kProjection + sign_pattern::kProjections,
  kInf,
  kZero,
  kHash,
  kExactMin,
  kExactMax,
  kWords
};

constexpr int64_t kTurn = std::numeric_limits<int64_t>::min();

bool is_wide_integer(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Long || dtype == c10::ScalarType::UInt64;
}

Value exact_value(int64_t number, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Long) return number;
  const uint64_t plain = static_cast<uint64_t>(number) ^ static_cast<uint64_t>(kTurn);
  if (plain <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(plain);
  return std::to_string(plain);
}

Value number_value(double number, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Bool) return number != 0;
  const bool whole =
      c10::isIntegralType(dtype, false) || dtype == c10::ScalarType::UInt16 || dtype == c10::ScalarType::UInt32;
  return whole ? Value(static_cast<int64_t>(number)) : Value(number);
}

at::Tensor resolved(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
}

// Elements one by one across a large memory cost more than torch's copy, which goes by tiles.
at::Tensor in_rows(const at::Tensor& tensor) {
  constexpr int64_t kSmall = 1 << 16;
  if (tensor.is_contiguous() || tensor.numel() <= kSmall) return tensor;
  const MergedDims dims(tensor.sizes(), tensor.strides());
  return dims.strides.empty() || dims.strides.back() == 1 ? tensor : tensor.contiguous();
}

void fill_on_cpu(const at::Tensor& tensor, Statistics* answer) {
  const ElementSums sums = element_sums(in_rows(resolved(tensor)));
  answer->known = true;
  answer->nan = sums.nan;
  answer->inf = sums.inf;
  answer->zero = sums.zero;
  answer->norm = std::sqrt(sums.squares);
  answer->projections = sums.projections;
  answer->hash = element_hash::finished(sums.hash, answer->numel);
  if (answer->numel == 0) return;
  answer->mean = sums.sum / static_cast<double>(answer->numel);
  const bool no_order = !tensor.is_complex() && sums.nan > 0;
  answer->min = no_order ? std::numeric_limits<double>::quiet_NaN() : sums.min;
  answer->max = no_order ? std::numeric_limits<double>::quiet_NaN() : sums.max;
  answer->exact_min = sums.exact_min;
  answer->exact_max = sums.exact_max;
}

at::Tensor count(const at::Tensor& flags) {
  return at::_ops::sum::call(flags, at::kLong);
}

// Tables on a device, made once: the signs of the elements of a block (512 x 4), those of the blocks (a row each), and
// the keys of the hash.
class DeviceTables {
 public:
  static DeviceTables& get() {
    static DeviceTables* tables = new DeviceTables;  // leaked: devices may be gone at static destruction
    return *tables;
  }

  at::Tensor elements(c10::Device device) {
    return table<double>(elements_, device, sign_pattern::kBlock, sign_pattern::kProjections, [](int64_t i) {
      const int64_t p = i % sign_pattern::kProjections, row = i / sign_pattern::kProjections;
      return sign_pattern::element_sign(p, row) * sign_pattern::block_sign(p, 0);
    });
  }
  at::Tensor blocks(c10::Device device, int64_t count) {
    return table<double>(blocks_, device, count, sign_pattern::kProjections, [](int64_t i) {
      return sign_pattern::block_sign(i % sign_pattern::kProjections, i / sign_pattern::kProjections);
    });
  }
  at::Tensor keys(c10::Device device) {
    return table<int64_t>(keys_, device, 1, element_hash::kWords,
                          [](int64_t i) { return static_cast<int64_t>(element_hash::kKeys[static_cast<size_t>(i)]); });
  }

 private:
  using Tables = std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, at::Tensor>;

  template <class T>
  at::Tensor table(Tables& tables, c10::Device device, int64_t rows, int64_t columns,
                   const std::function<T(int64_t)>& item) {
    std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor& known = tables[{device.type(), device.index()}];
    if (!known.defined() || known.size(0) < rows) {
      int64_t size = 1;
      while (size < rows) size *= 2;
      const at::Tensor made = at::_ops::empty_memory_format::call(
          c10::SymIntArrayRef({c10::SymInt(size), c10::SymInt(columns)}), c10::CppTypeToScalarType<T>::value,
          std::nullopt, c10::Device(at::kCPU), std::nullopt, std::nullopt);
      auto* const items = made.mutable_data_ptr<T>();
      for (int64_t i = 0; i < size * columns; ++i) items[i] = item(i);
      known = made.to(device);
    }
    return known.size(0) == rows ? known : known.narrow(0, 0, rows);
  }

  std::mutex mutex_;
  Tables elements_, blocks_, keys_;
};

// The bytes of the elements as words of eight bytes, filled up with zeros to whole chunks: a row for each.
at::Tensor chunks_of(const at::Tensor& tensor) {
  constexpr int64_t kChunk = element_hash::kChunkBytes;
  at::Tensor dense = tensor.contiguous();
  if (dense.is_complex()) dense = at::_ops::view_as_real::call(dense);
  at::Tensor flat = at::_ops::view::call(dense, c10::SymIntArrayRef(c10::SymInt(-1)));
  const int64_t element = flat.element_size(), left = flat.numel() * element % kChunk;
  if (element < element_hash::kWordBytes) {
    flat = at::_ops::view_dtype::call(flat, element == 1 ? at::kChar : element == 2 ? at::kShort : at::kInt);
  } else {
    flat = at::_ops::view_dtype::call(flat, at::kLong);
  }
  if (left > 0) {
    const int64_t more = (kChunk - left) / element;
    flat = at::_ops::constant_pad_nd::call(flat, c10::SymIntArrayRef({c10::SymInt(0), c10::SymInt(more)}), 0);
  } else if (flat.storage_offset() * element % element_hash::kWordBytes != 0) {
    flat = flat.clone();  // words begin at multiples of eight bytes
  }
  return at::_ops::view_dtype::call(flat, at::kLong).view({-1, element_hash::kWords});
}

// The same sum as element_hash::sum_of(), by the device's operators.
at::Tensor hash_on_device(const at::Tensor& tensor) {
  const at::Tensor words = chunks_of(tensor);
  const auto times = [](const at::Tensor& one, uint64_t factor) {
    return at::_ops::mul_Scalar::call(one, static_cast<int64_t>(factor));
  };
  const auto shifted = [](const at::Tensor& one, int64_t by) {
    return at::_ops::bitwise_right_shift_Tensor_Scalar::call(one, by);
  };
  const auto low = [](const at::Tensor& one) { return at::_ops::bitwise_and_Scalar::call(one, 0xFFFFFFFF); };
  const auto folded = [&](const at::Tensor& one, int64_t by) {
    return at::_ops::bitwise_xor_Tensor::call(one, shifted(one, by));
  };
  const at::Tensor keyed = at::_ops::bitwise_xor_Tensor::call(words, DeviceTables::get().keys(words.device()));
  const at::Tensor products = at::_ops::mul_Tensor::call(low(keyed), low(shifted(keyed, 32)));
  const at::Tensor rows = at::_ops::add_Tensor::call(products, words, 1).view({-1, 8, element_hash::kColumns});
  const at::Tensor columns = at::_ops::sum_dim_IntList::call(rows, at::OptionalIntArrayRef({1}), false, at::kLong);
  const at::Tensor places =
      at::_ops::arange_start::call(1, columns.numel() + 1, at::kLong, std::nullopt, words.device(), std::nullopt);
  const at::Tensor placed = at::_ops::add_Tensor::call(times(columns.view({-1}), element_hash::kMixWord),
                                                       times(places, element_hash::kMixPlace), 1);
  return count(folded(times(folded(placed, 32), element_hash::kMixWord), 29));
}

// `numbers`: float64, or complex in two parts.
at::Tensor projections_on_device(const at::Tensor& numbers) {
  constexpr int64_t kBlock = sign_pattern::kBlock;
  const at::Tensor parts = numbers.is_complex() ? at::_ops::view_as_real::call(numbers) : numbers;
  const at::Tensor finite = at::_ops::nan_to_num::call(parts, 0.0, 0.0, 0.0);
  at::Tensor flat = finite.contiguous().view({-1});
  const c10::Device device = flat.device();
  const int64_t numel = flat.numel(), blocks = (numel + kBlock - 1) / kBlock;
  const at::Tensor signs = DeviceTables::get().elements(device);
  if (blocks == 1) {
    const at::Tensor part = numel == kBlock ? signs : signs.narrow(0, 0, numel);
    const at::Tensor sums = at::_ops::mm::call(flat.view({1, numel}), part);
    return at::_ops::mul_Tensor::call(sums, DeviceTables::get().blocks(device, 1)).view({-1});
  }
  if (numel % kBlock) {
    flat = at::_ops::constant_pad_nd::call(
        flat, c10::SymIntArrayRef({c10::SymInt(0), c10::SymInt(blocks * kBlock - numel)}), 0);
  }
  const at::Tensor sums = at::_ops::mm::call(flat.view({blocks, kBlock}), signs);
  const at::Tensor turned = at::_ops::mul_Tensor::call(sums, DeviceTables::get().blocks(device, blocks));
  return at::_ops::sum_dim_IntList::call(turned, at::OptionalIntArrayRef({0}), false, at::kDouble);
}

at::Tensor words_on_device(const at::Tensor& given) {
  const at::Tensor tensor = resolved(given);
  const c10::ScalarType dtype = tensor.scalar_type();
  const bool eight_bits = tensor.is_floating_point() && tensor.element_size() == 1;
  at::Tensor numbers = eight_bits ? tensor.to(at::kFloat).to(at::kDouble)
                                  : tensor.to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
  const at::Tensor nan = count(at::_ops::isnan::call(numbers)), inf = count(at::_ops::isinf::call(numbers)),
                   zero = count(at::_ops::eq_Scalar::call(numbers, 0));
  const at::Tensor projections = projections_on_device(numbers);
  const at::Tensor norm = at::_ops::linalg_vector_norm::call(numbers, 2, std::nullopt, false, std::nullopt);
  if (tensor.is_complex()) numbers = at::_ops::abs::call(numbers);
  const auto [least, most] = at::_ops::aminmax::call(numbers, std::nullopt, false);
  const at::Tensor mean = at::_ops::mean::call(numbers, std::nullopt);
  const at::Tensor doubles = at::_ops::stack::call({least, most, mean, norm}, 0);
  at::Tensor exact_least = zero, exact_most = zero;
  if (dtype == c10::ScalarType::Long) {
    std::tie(exact_least, exact_most) = at::_ops::aminmax::call(tensor, std::nullopt, false);
  }
  const at::Tensor whole = at::_ops::stack::call({nan, inf, zero, hash_on_device(tensor), exact_least, exact_most}, 0);
  const std::vector<at::Tensor> words{at::_ops::view_dtype::call(doubles, at::kLong),
                                      at::_ops::view_dtype::call(projections, at::kLong), whole};
  return at::_ops::cat::call(words, 0);
}

// Kinds of tensors that their device has refused once: asked no more.
class Refused {
 public:
  static Refused& get() {
    static Refused* refused = new Refused;  // leaked: threads may outlive static destruction
    return *refused;
  }
  bool knows(const at::Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    return kinds_.count({tensor.device().type(), tensor.scalar_type()}) > 0;
  }
  void add(const at::Tensor& tensor, const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!kinds_.insert({tensor.device().type(), tensor.scalar_type()}).second) return;
    log::notice("statistics of " + torch_name(tensor.scalar_type()) + " tensors on " + tensor.device().str() +
                " are computed on the CPU: " + why.substr(0, why.find('\n')));
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<c10::DeviceType, c10::ScalarType>> kinds_;
};

bool is_number(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e5m2fnuz:
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e8m0fnu:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
      return true;
    default:
      return c10::isIntegralType(dtype, true) || c10::isComplexType(dtype);
  }
}

}  // namespace

Value Statistics::least() const {
  if (!known || numel == 0) return {};
  return is_wide_integer(dtype) ? exact_value(exact_min, dtype) : number_value(min, dtype);
}

Value Statistics::most() const {
  if (!known || numel == 0) return {};
  return is_wide_integer(dtype) ? exact_value(exact_max, dtype) : number_value(max, dtype);
}

Value to_value(const Statistics& statistics) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(statistics.hash));
  return make_dict({{"min", statistics.least()},
                    {"max", statistics.most()},
                    {"mean", statistics.numel ? Value(statistics.mean) : Value()},
                    {"norm", statistics.norm},
                    {"nan", statistics.nan},
                    {"inf", statistics.inf},
                    {"zero", statistics.zero},
                    {"hash", std::string(hash)}});
}

bool may_have_statistics(const at::Tensor& tensor) {
  std::string what;
  return tensor.defined() && why_not_plain(tensor, &what).empty() && tensor.layout() == at::kStrided &&
         !tensor._is_zerotensor() && is_number(tensor.scalar_type());
}

StatisticsQuery::StatisticsQuery(const at::Tensor& tensor) {
  if (!may_have_statistics(tensor)) return;
  answer_.dtype = tensor.scalar_type();
  answer_.numel = tensor.numel();
  if (tensor.device().is_cpu()) {
    fill_on_cpu(tensor, &answer_);
    return;
  }
  // Empty tensors have nothing to reduce; some devices raise for them. torch has no minimum of unsigned 64-bit numbers.
  if (tensor.numel() > 0 && answer_.dtype != c10::ScalarType::UInt64 && !Refused::get().knows(tensor)) {
    try {
      words_ = words_on_device(tensor);
      return;
    } catch (const c10::Error& error) {
      Refused::get().add(tensor, error.what_without_backtrace());
    } catch (const std::exception& error) {
      Refused::get().add(tensor, error.what());
    }
  }
  fill_on_cpu(tensor.to(at::kCPU), &answer_);
}

void StatisticsQuery::take(const int64_t* words) {
  const auto number = [&](Word word) {
    double value = 0;
    std::memcpy(&value, words + word, sizeof value);
    return value;
  };
  answer_.known = true;
  answer_.min = number(kMin);
  answer_.max = number(kMax);
  answer_.exact_min = words[kExactMin];
  answer_.exact_max = words[kExactMax];
  for (size_t p = 0; p < answer_.projections.size(); ++p) {
    answer_.projections[p] = number(static_cast<Word>(kProjection + p));
  }
  answer_.mean = number(kMean);
  answer_.norm = number(kNorm);
  answer_.nan = words[kNan];
  answer_.inf = words[kInf];
  answer_.zero = words[kZero];
  answer_.hash = element_hash::finished(static_cast<uint64_t>(words[kHash]), answer_.numel);
  words_.reset();
}

void StatisticsQuery::answer_all(const std::vector<StatisticsQuery*>& questions) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<StatisticsQuery*>> groups;
  for (StatisticsQuery* question : questions) {
    if (question->answered()) continue;
    const c10::Device device = question->words_.device();
    groups[{device.type(), device.index()}].push_back(question);
  }
  for (auto& [device, open] : groups) {
    std::vector<at::Tensor> words;
    for (const StatisticsQuery* question : open) words.push_back(question->words_);
    const at::Tensor read = at::_ops::stack::call(words, 0).to(at::kCPU);
    const int64_t* all = read.const_data_ptr<int64_t>();
    for (size_t i = 0; i < open.size(); ++i) open[i]->take(all + i * kWords);
  }
}

}  // namespace op_tools
