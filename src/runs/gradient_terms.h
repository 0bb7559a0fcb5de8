// The terms that the engine may have added up to a gradient that no call was seen to make: the results of backward
// calls of its step that have its shape. A sum's rounding goes by the size of its terms, however little is left of
// them. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "record/recording.h"

namespace op_tools {

class GradientTerms {
 public:
  // The calls from here on are of this training step.
  void enter_step(int64_t step);
  // A result of a backward call: its norm, and that of the difference between both runs.
  void add(ListNumber shape, double norm, double difference);
  // The largest norm that the difference of such a sum has by rounding. None: not all of its terms were seen.
  std::optional<double> sum_difference(ListNumber shape, double norm, double unit) const;

 private:
  struct Terms {
    double largest = 0, total = 0, difference = 0;  // norms; the largest difference
  };
  std::unordered_map<ListNumber, Terms> by_shape_;
  int64_t step_ = 0;
};

}  // namespace op_tools
