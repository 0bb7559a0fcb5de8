#include "tensor/statistics_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/log.h"

namespace op_tools {
namespace {

bool is_close(double number, double other, double scale) {
  constexpr double kShare = 1e-9;  // both are sums in float64
  return number == other || (std::isnan(number) && std::isnan(other)) || std::fabs(number - other) <= kShare * scale;
}

StatisticsPart difference(const Statistics& device, const Statistics& host) {
  const double count = static_cast<double>(std::max<int64_t>(host.numel, 1));
  const bool is_finite = std::isfinite(host.norm);
  const double sums = is_finite ? host.norm * std::sqrt(count) : 0;
  const double ulps = c10::isComplexType(host.dtype) ? std::fabs(host.max) : 0;
  if (device.hash != host.hash) return StatisticsPart::kHash;
  if (device.nan != host.nan || device.inf != host.inf || device.zero != host.zero) return StatisticsPart::kCounts;
  if (!is_close(device.min, host.min, ulps) || !is_close(device.max, host.max, ulps)) return StatisticsPart::kExtremes;
  if (!is_close(device.norm, host.norm, is_finite ? host.norm : 0)) return StatisticsPart::kNorm;
  if (!is_finite) return StatisticsPart::kNone;
  if (!is_close(device.mean, host.mean, sums / count)) return StatisticsPart::kMean;
  for (size_t p = 0; p < host.projections.size(); ++p) {
    if (!is_close(device.projections[p], host.projections[p], sums)) return StatisticsPart::kProjections;
  }
  return StatisticsPart::kNone;
}

}  // namespace

std::string_view to_string(StatisticsPart part) {
  switch (part) {
    case StatisticsPart::kHash:
      return "hash";
    case StatisticsPart::kCounts:
      return "counts";
    case StatisticsPart::kExtremes:
      return "extremes";
    case StatisticsPart::kNorm:
      return "norm";
    case StatisticsPart::kMean:
      return "mean";
    case StatisticsPart::kProjections:
      return "projections";
    case StatisticsPart::kNone:
      break;
  }
  return "";
}

StatisticsCheck& StatisticsCheck::get() {
  static auto* const check = new StatisticsCheck;  // leaked: threads may outlive static destruction
  return *check;
}

void StatisticsCheck::begin_run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  distrusted_.clear();
  asked_.clear();
}

bool StatisticsCheck::distrusts(c10::DeviceType device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return distrusted_.contains(device);
}

bool StatisticsCheck::is_due(const at::Tensor& tensor) {
  const auto order = std::bit_width(static_cast<uint64_t>(tensor.numel()));
  const c10::Device device = tensor.device();
  const std::lock_guard<std::mutex> lock(mutex_);
  Asked& asked = asked_[{device.type(), tensor.scalar_type(), static_cast<int>(order), tensor.is_contiguous()}];
  asked.index = device.index();
  asked.elements = tensor.numel();
  return std::has_single_bit(++asked.count);
}

bool StatisticsCheck::agree(const at::Tensor& tensor, const Statistics& device, const Statistics& host) {
  const StatisticsPart part = difference(device, host);
  if (part == StatisticsPart::kNone) return true;
  const c10::Device where = tensor.device();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!distrusted_.insert(where.type()).second) return false;
  doubts_.push_back({where.type(), part, host.dtype, host.numel});
  doubts_count_.store(doubts_.size(), std::memory_order_release);
  log::warn("the device " + where.str() + " computes statistics of its tensors wrong (" + std::string(to_string(part)) +
            " of a " + torch_name(host.dtype) + " tensor of " + std::to_string(host.numel) +
            " elements): one of its operators for sums, products, comparisons or copies is wrong. They are computed on "
            "the CPU from now on, which is slower; those that the device has computed before are in doubt");
  return false;
}

std::vector<StatisticsCheck::Kind> StatisticsCheck::kinds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Kind> kinds;
  for (const auto& [key, asked] : asked_) {
    const auto& [device, dtype, order, is_contiguous] = key;
    if (distrusted_.contains(device)) continue;
    kinds.push_back({c10::Device(device, asked.index), dtype, asked.elements, is_contiguous});
  }
  return kinds;
}

std::vector<DeviceDoubt> StatisticsCheck::doubts_after(size_t seen) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {doubts_.begin() + static_cast<std::ptrdiff_t>(std::min(seen, doubts_.size())), doubts_.end()};
}

}  // namespace op_tools
