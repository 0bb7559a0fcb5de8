#include "timing/durations.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace op_tools {
namespace {

constexpr int kBits = 6;  // 64 classes to each doubling: the middle of a class is at most 1/128 away from its ends
constexpr int64_t kExact = int64_t{1} << (kBits + 1);  // below, each nanosecond has a class

uint16_t bucket_of(int64_t nanoseconds) {
  if (nanoseconds < kExact) return static_cast<uint16_t>(nanoseconds);
  const int shift = std::bit_width(static_cast<uint64_t>(nanoseconds)) - 1 - kBits;
  return static_cast<uint16_t>((shift << kBits) + (nanoseconds >> shift));
}

int64_t middle_of(uint16_t bucket) {
  if (bucket < kExact) return bucket;
  const int shift = (bucket >> kBits) - 1;
  const int64_t first = (int64_t{bucket} - (int64_t{shift} << kBits)) << shift;
  return first + (int64_t{1} << shift) / 2;
}

}  // namespace

void Durations::add(int64_t nanoseconds) {
  nanoseconds = std::max<int64_t>(nanoseconds, 0);
  least_ = count_ ? std::min(least_, nanoseconds) : nanoseconds;
  most_ = std::max(most_, nanoseconds);
  total_ += nanoseconds;
  ++count_;
  count_in(bucket_of(nanoseconds), 1);
}

void Durations::add(const Durations& other) {
  if (other.count_ == 0) return;
  least_ = count_ ? std::min(least_, other.least_) : other.least_;
  most_ = std::max(most_, other.most_);
  total_ += other.total_;
  count_ += other.count_;
  count_in(static_cast<uint16_t>(other.first_ + other.counts_.size() - 1), 0);  // once to its full length
  for (size_t i = 0; i < other.counts_.size(); ++i) count_in(static_cast<uint16_t>(other.first_ + i), other.counts_[i]);
}

int64_t Durations::quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_)));
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    if (below >= rank) return std::clamp(middle_of(static_cast<uint16_t>(first_ + i)), least_, most_);
  }
  return most_;
}

void Durations::count_in(uint16_t bucket, uint64_t more) {
  if (counts_.empty()) first_ = bucket;
  if (bucket < first_) {
    counts_.insert(counts_.begin(), static_cast<size_t>(first_ - bucket), 0);
    first_ = bucket;
  }
  const auto place = static_cast<size_t>(bucket - first_);
  if (place >= counts_.size()) counts_.resize(place + 1);
  counts_[place] += more;
}

}  // namespace op_tools
