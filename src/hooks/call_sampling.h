// The limits of a tool that runs calls again: the first N of each operator, shapes and dtypes, and of these every Nth.
// Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/option.h"

namespace op_tools {

class CallSampling {
 public:
  CallSampling(int64_t first_n, int64_t every_nth) : first_n_(first_n), every_nth_(every_nth) {}

  // Counts a call of this signature (hooks/signature.h): whether it is among those that are looked at.
  bool admits(uint64_t signature) {
    if (first_n_ == kNoLimit && every_nth_ == 1) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t number = seen_[signature]++;
    return number < first_n_ && number % every_nth_ == 0;
  }

 private:
  const int64_t first_n_, every_nth_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, int64_t> seen_;
};

}  // namespace op_tools
