// A device's statistics of its tensors are compared with the host's numbers of the same tensors: for the first tensor
// of each kind, then for the second, the fourth, the eighth, and so on. A device that computes any of them otherwise
// computes none from then on: its operators are those that a program is looked at for. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/export.h"
#include "tensor/statistics.h"

namespace op_tools {

// The part of two statistics that differs by more than the order of sums.
enum class StatisticsPart : uint8_t { kNone, kHash, kCounts, kExtremes, kNorm, kMean, kProjections };
OP_TOOLS_API std::string_view to_string(StatisticsPart part);  // "hash"

// A device that is trusted no more.
struct DeviceDoubt {
  c10::DeviceType device;
  StatisticsPart differs;
  c10::ScalarType dtype;  // of the tensor
  int64_t elements;
};

class StatisticsCheck {
 public:
  static StatisticsCheck& get();

  // A run of a tool begins: all devices are trusted again.
  void begin_run();
  bool distrusts(c10::DeviceType device) const;
  // Is it this tensor's turn to be compared?
  bool is_due(const at::Tensor& tensor);
  // True: they agree. Else the device is trusted no more, which a warning says.
  bool agree(const at::Tensor& tensor, const Statistics& device, const Statistics& host);

  // Of the tensors that trusted devices were asked about in this run.
  struct Kind {
    c10::Device device;
    c10::ScalarType dtype;
    int64_t elements;
    bool is_contiguous;
  };
  std::vector<Kind> kinds() const;

  // Those that came after the first `seen` of the process.
  std::vector<DeviceDoubt> doubts_after(size_t seen) const;
  size_t doubts() const { return doubts_count_.load(std::memory_order_acquire); }  // asked by each recorded call

 private:
  // Device, dtype, order of two in size, dense or not.
  using Key = std::tuple<c10::DeviceType, c10::ScalarType, int, bool>;
  struct Asked {
    uint64_t count = 0;
    c10::DeviceIndex index = 0;
    int64_t elements = 0;
  };

  std::atomic<size_t> doubts_count_{0};  // of doubts_
  mutable std::mutex mutex_;             // guards all that follows
  std::set<c10::DeviceType> distrusted_;
  std::map<Key, Asked> asked_;
  std::vector<DeviceDoubt> doubts_;
};

}  // namespace op_tools
