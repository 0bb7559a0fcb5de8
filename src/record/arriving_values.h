// Values that a collective brings later, and views of them: their rows are there, and they are read before the first
// call that reads elements; a program waits for the collective before that. A value that the program writes, frees or
// never reads stays without statistics. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace op_tools {

struct ArrivingValue {
  at::Tensor tensor;
  int64_t version = 0;
  uint32_t number = 0;  // of the value's row
};

class ArrivingValues {
 public:
  void add(const at::Tensor& tensor, uint32_t number);
  bool empty() const { return waiting_.empty(); }
  // Does it show memory of some?
  bool shows(const at::Tensor& read) const;
  // Those whose memory `read` shows in part: they have arrived, and wait no longer.
  std::vector<ArrivingValue> take(const at::Tensor& read);
  // All: their rows are written.
  std::vector<ArrivingValue> take_all();

 private:
  std::vector<ArrivingValue> waiting_;
};

}  // namespace op_tools
