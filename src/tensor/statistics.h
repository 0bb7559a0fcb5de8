// A tensor's elements in a few numbers, from one pass over it. On the CPU they come at once; on a device they are
// computed there, in the device's own order of work, and read together with others later: no round trip per tensor.
// Where a device cannot compute them the tensor is copied. Called under InternalGuard. Thread-safe.
//
// Minimum, maximum, NaN, infinity and zero counts and the hash are exact; mean and norm are summed in float64: off by
// no more than 1e-12 of the mean of |x|, and of the norm. A NaN anywhere makes all four NaN, as in torch. Complex
// numbers: minimum, maximum and mean are those of |x|. The hash is of the bytes of the elements in the order of their
// indices: strides, device and place in memory make no difference. Projections: sign_pattern.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/sign_pattern.h"
#include "tensor/value.h"

namespace op_tools {

struct Statistics {
  bool known = false;  // false: its elements are no numbers of this kind (sparse, quantized, meta, ...)
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  int64_t numel = 0, nan = 0, inf = 0, zero = 0;
  double min = 0, max = 0;
  int64_t exact_min = 0, exact_max = 0;  // of 64-bit integers; unsigned ones with the highest bit turned
  double mean = 0, norm = 0;             // norm: root of the sum of squares
  std::array<double, sign_pattern::kProjections> projections{};
  uint64_t hash = 0;

  // Minimum and maximum, of the kind of the elements: bool, int64, double (text for integers beyond int64); None where
  // empty.
  Value least() const;
  Value most() const;
};

// The cells of a row: min, max, mean (None for an empty tensor), norm, nan, inf, zero, hash (16 hexadecimal digits).
void add_cells(const Statistics& statistics, std::vector<std::pair<Value, Value>>* cells);

// Has this tensor such numbers?
bool may_have_statistics(const at::Tensor& tensor);

// The question about a tensor as it is now, and later its answer.
class StatisticsQuery {
 public:
  // Any tensor: a tensor without numbers is answered so. `earlier`: perhaps of the same elements. On the CPU their hash
  // is computed first: where it is the same, so are the other numbers.
  explicit StatisticsQuery(const at::Tensor& tensor, const Statistics* earlier = nullptr);
  bool answered() const { return !words_.defined(); }
  const Statistics& answer() const { return answer_; }
  // The device has computed it, and nothing compared it with the host's.
  bool by_device() const { return by_device_; }

  // A run of a tool begins: devices are asked again for kinds of tensors that they refused in an earlier one, and their
  // results are compared with the host's from the first tensor on.
  static void begin_run();
  // It ends: the results of the devices that were asked, for known tensors of each kind that they were asked about, are
  // compared with the host's.
  static void check_devices();

  // Answers all questions that are still open, with a single transfer per device.
  static void answer_all(const std::vector<StatisticsQuery*>& questions);

 private:
  friend class OpenStatistics;
  StatisticsQuery() = default;
  bool ask_device(const at::Tensor& tensor);
  bool compare(const at::Tensor& tensor, const at::Tensor& on_host);
  void take(const int64_t* words);

  Statistics answer_;
  bool by_device_ = false;
  at::Tensor words_;  // on the device: the numbers, as 64-bit words
};

// answer_all() in its steps, for questions that several threads share: the steps that wait for devices need no lock.
// The questions live until give().
class OpenStatistics {
 public:
  explicit OpenStatistics(const std::vector<StatisticsQuery*>& questions);
  // Waits for the devices; a second at most where the program hangs.
  void read();
  // To those that are still open. A question that a device did not answer stays unknown.
  void give();

 private:
  struct Group;
  std::shared_ptr<std::vector<Group>> groups_;  // by device
};

}  // namespace op_tools
