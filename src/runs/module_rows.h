// Which module's call was made inside of which, in a recording of modules: the rows are in the order of the calls'
// ends, their ids in the order of their begins. A difference born in a module's part is carried to its own results. One
// thread at a time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "record/recording.h"

namespace op_tools {

class ModuleRows {
 public:
  explicit ModuleRows(const Recording& run);

  // The run's calls in an order in which each module's call comes behind those inside of it: in backward a module's
  // last node may run before that of a weight in it.
  const std::vector<uint32_t>& order() const { return order_; }

  // The findings in the calls inside of a module so far.
  struct Inside {
    double difference = 0;       // the largest of their results
    uint32_t carried = kNoCall;  // the first row with a difference that was born
  };
  const Inside* inside(uint32_t call) const;
  // `row`: kNoCall where nothing was born, here or before.
  void judged(uint32_t call, double difference, uint32_t row);

 private:
  uint32_t around(uint32_t call) const;
  void put_in_order();

  const Recording& run_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> around_;                    // by number of a forward call; empty: no calls of modules
  std::unordered_map<uint64_t, uint32_t> forward_;  // by id
  std::unordered_map<uint64_t, Inside> inside_;     // by forward call and phase
  uint64_t key(uint32_t forward, Phase phase) const { return uint64_t{forward} << 1 | (phase == Phase::kBackward); }
};

}  // namespace op_tools
