// A bounded summary of many durations: how many, sum, extremes and quantiles. Exact but for the quantiles, which are
// off by less than 0.8 % of their value: durations are counted in classes, 64 to each doubling. Takes half a KB for
// each doubling between the shortest and the longest, however many durations there are. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace op_tools {

class Durations {
 public:
  void add(int64_t nanoseconds);
  void add(const Durations& other);

  uint64_t count() const { return count_; }
  int64_t total() const { return total_; }
  int64_t least() const { return count_ ? least_ : 0; }
  int64_t most() const { return most_; }
  double mean() const { return count_ ? static_cast<double>(total_) / static_cast<double>(count_) : 0; }
  // The duration that a share of `q` (0 to 1) of all does not exceed; 0 when there are none.
  int64_t quantile(double q) const;

 private:
  void count_in(uint16_t bucket, uint64_t more);

  uint64_t count_ = 0;
  int64_t total_ = 0, least_ = 0, most_ = 0;
  uint16_t first_ = 0;            // class of the first of
  std::vector<uint64_t> counts_;  // by class, without gaps: counting is an addition, without a search
};

}  // namespace op_tools
