#include "tensor/statistics.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/stack_ops.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/hung_program.h"
#include "base/log.h"
#include "tensor/device_statistics.h"
#include "tensor/element_hash.h"
#include "tensor/element_sums.h"
#include "tensor/exception_text.h"
#include "tensor/internal_guard.h"
#include "tensor/merged_dims.h"
#include "tensor/plain_tensor.h"
#include "tensor/statistics_check.h"

namespace op_tools {
namespace {

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

// Single elements across a large memory cost more than torch's copy, which goes by tiles.
at::Tensor in_rows(const at::Tensor& tensor) {
  constexpr int64_t kSmall = 1 << 16;
  if (tensor.is_contiguous() || tensor.numel() <= kSmall) return tensor;
  const MergedDims dims(tensor.sizes(), tensor.strides());
  return dims.strides.empty() || dims.strides.back() == 1 ? tensor : tensor.contiguous();
}

void fill_on_cpu(const at::Tensor& tensor, Statistics* answer, const Statistics* earlier = nullptr) {
  const at::Tensor elements = in_rows(device_statistics::resolved(tensor));
  const bool may_be_same =
      earlier && earlier->known && earlier->dtype == answer->dtype && earlier->numel == answer->numel;
  if (may_be_same && element_hash::finished(element_hash_sum(elements), answer->numel) == earlier->hash) {
    *answer = *earlier;
    return;
  }
  const ElementSums sums = element_sums(elements);
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

// Kinds of tensors that their device has refused once: asked no more in this run.
class Refused {
 public:
  static Refused& get() {
    static Refused* refused = new Refused;  // leaked: threads may outlive static destruction
    return *refused;
  }
  // The reason may be gone: memory that was full.
  void begin_run() {
    std::lock_guard<std::mutex> lock(mutex_);
    kinds_.clear();
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

void add_cells(const Statistics& statistics, std::vector<std::pair<Value, Value>>* cells) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(statistics.hash));
  cells->emplace_back("min", statistics.least());
  cells->emplace_back("max", statistics.most());
  cells->emplace_back("mean", statistics.numel ? Value(statistics.mean) : Value());
  cells->emplace_back("norm", statistics.norm);
  cells->emplace_back("nan", statistics.nan);
  cells->emplace_back("inf", statistics.inf);
  cells->emplace_back("zero", statistics.zero);
  cells->emplace_back("hash", std::string(hash));
}

namespace {

// With numbers of its own for each element, which every dtype has; and the same on the host.
std::pair<at::Tensor, at::Tensor> known_tensor(const StatisticsCheck::Kind& kind) {
  constexpr int64_t kMost = int64_t{1} << 16;
  const int64_t rows = kind.is_contiguous ? 1 : 2;
  const int64_t columns = std::max<int64_t>(std::min(kind.elements, kMost) / rows, 1);
  const at::Tensor doubles =
      at::_ops::empty_memory_format::call(c10::SymIntArrayRef({c10::SymInt(rows), c10::SymInt(columns)}), at::kDouble,
                                          std::nullopt, c10::Device(at::kCPU), std::nullopt, std::nullopt);
  auto* const numbers = doubles.mutable_data_ptr<double>();
  for (int64_t i = 0; i < rows * columns; ++i) numbers[i] = static_cast<double>(1 + i * 37 % 113);
  const at::Tensor host = doubles.to(kind.dtype), device = host.to(kind.device);
  return {kind.is_contiguous ? device : device.t(), kind.is_contiguous ? host : host.t()};
}

// An expanded view may show elements without end: reading them would be all that the program does.
bool is_repeated_beyond_use(const at::Tensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 26;
  return tensor.numel() > kMost && tensor.has_storage() &&
         static_cast<uint64_t>(tensor.numel()) / 4 > tensor.storage().nbytes() / tensor.element_size();
}
}  // namespace

bool may_have_statistics(const at::Tensor& tensor) {
  std::string type;
  return tensor.defined() && why_not_copied(tensor, &type).empty() && tensor.layout() == at::kStrided &&
         !tensor._is_zerotensor() && is_number(tensor.scalar_type()) && !is_repeated_beyond_use(tensor);
}

void StatisticsQuery::begin_run() {
  StatisticsCheck::get().begin_run();
  Refused::get().begin_run();
}

StatisticsQuery::StatisticsQuery(const at::Tensor& tensor, const Statistics* earlier) {
  if (!may_have_statistics(tensor)) return;
  answer_.dtype = tensor.scalar_type();
  answer_.numel = tensor.numel();
  if (tensor.device().is_cpu()) {
    fill_on_cpu(tensor, &answer_, earlier);
    return;
  }
  // Empty tensors have nothing to reduce; some devices raise for them. torch has no minimum of unsigned 64-bit numbers.
  // Devices whose tensors have no storage show no bytes of theirs.
  const bool may_ask_device = tensor.numel() > 0 && !is_copied_by_its_device(tensor) &&
                              answer_.dtype != c10::ScalarType::UInt64 && !Refused::get().knows(tensor);
  if (!may_ask_device || StatisticsCheck::get().distrusts(tensor.device().type()) || !ask_device(tensor)) {
    fill_on_cpu(tensor.to(at::kCPU), &answer_);
  }
}

// False: the device refuses.
bool StatisticsQuery::ask_device(const at::Tensor& tensor) {
  try {
    words_ = device_statistics::words_of(tensor);
    by_device_ = true;
    if (StatisticsCheck::get().is_due(tensor)) compare(tensor, tensor.to(at::kCPU));
    return true;
  } catch (const c10::Error& error) {
    Refused::get().add(tensor, error.what_without_backtrace());
  } catch (const std::exception& error) {
    Refused::get().add(tensor, exception_text(error));
  }
  words_.reset();
  by_device_ = false;
  return false;
}

bool StatisticsQuery::compare(const at::Tensor& tensor, const at::Tensor& on_host) {
  Statistics host = answer_;
  fill_on_cpu(on_host, &host);
  const at::Tensor read = words_.to(at::kCPU);
  take(read.const_data_ptr<int64_t>());
  const bool agrees = StatisticsCheck::get().agree(tensor, answer_, host);
  answer_ = host;
  by_device_ = false;
  return agrees;
}

void StatisticsQuery::check_devices() {
  std::set<c10::DeviceType> wrong;
  for (const StatisticsCheck::Kind& kind : StatisticsCheck::get().kinds()) {
    if (wrong.contains(kind.device.type())) continue;
    try {
      const auto [on_device, on_host] = known_tensor(kind);
      StatisticsQuery query;
      query.answer_.dtype = kind.dtype;
      query.answer_.numel = on_host.numel();
      query.words_ = device_statistics::words_of(on_device);
      if (!query.compare(on_device, on_host)) wrong.insert(kind.device.type());
    } catch (const std::exception& error) {
      log::debug("statistics of a known tensor on " + kind.device.str() + ": " + exception_text(error));
    }
  }
}

void StatisticsQuery::take(const int64_t* words) {
  using namespace device_statistics;  // NOLINT: the order of the words
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
  answer_.mean = number(kSum) / static_cast<double>(answer_.numel);
  answer_.norm = number(kNorm);
  answer_.nan = words[kNan];
  answer_.inf = words[kInf] + (c10::isComplexType(answer_.dtype) ? 0 : words[kMinusInf]);
  answer_.zero = words[kZero];
  answer_.hash = element_hash::finished(static_cast<uint64_t>(words[kHash]), answer_.numel);
  words_.reset();
}

void StatisticsQuery::answer_all(const std::vector<StatisticsQuery*>& questions) {
  OpenStatistics open(questions);
  open.read();
  open.give();
}

struct OpenStatistics::Group {
  std::vector<StatisticsQuery*> questions;
  std::vector<at::Tensor> words;  // on the device
  at::Tensor read;                // on the host; undefined: the device has not answered
};

OpenStatistics::OpenStatistics(const std::vector<StatisticsQuery*>& questions)
    : groups_(std::make_shared<std::vector<Group>>()) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Group> by_device;
  for (StatisticsQuery* question : questions) {
    if (question->answered()) continue;
    const c10::Device device = question->words_.device();
    Group& group = by_device[{device.type(), device.index()}];
    group.questions.push_back(question);
    group.words.push_back(question->words_);
  }
  for (auto& [device, group] : by_device) groups_->push_back(std::move(group));
}

void OpenStatistics::read() {
  const auto read_all = [](std::vector<Group>& groups) {
    for (Group& group : groups) group.read = at::_ops::stack::call(group.words, 0).to(at::kCPU);
  };
  if (!program_hangs()) return read_all(*groups_);
  constexpr std::chrono::seconds kPatience{1};
  // Shared with the thread, which may outlive this object.
  struct Reading {
    std::shared_ptr<std::vector<Group>> groups;
    std::mutex mutex;
    std::condition_variable ended;
    bool has_ended = false;
    std::exception_ptr failure;
  };
  const auto reading = std::make_shared<Reading>();
  reading->groups = std::make_shared<std::vector<Group>>(*groups_);
  std::thread([reading, read_all] {
    std::exception_ptr failure;
    try {
      const InternalGuard ours;
      read_all(*reading->groups);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(reading->mutex);
    reading->failure = failure;
    reading->has_ended = true;
    reading->ended.notify_all();
  }).detach();
  std::unique_lock lock(reading->mutex);
  if (!reading->ended.wait_for(lock, kPatience, [&] { return reading->has_ended; })) return;
  if (reading->failure) std::rethrow_exception(reading->failure);
  groups_ = reading->groups;
}

void OpenStatistics::give() {
  for (const Group& group : *groups_) {
    for (size_t i = 0; i < group.questions.size(); ++i) {
      StatisticsQuery& question = *group.questions[i];
      if (!question.words_.is_same(group.words[i])) continue;  // answered meanwhile
      if (group.read.defined()) {
        question.take(group.read.const_data_ptr<int64_t>() + i * device_statistics::kWords);
      } else {
        question.words_.reset();
      }
    }
  }
}

}  // namespace op_tools
