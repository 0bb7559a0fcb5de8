// NaN and infinities in tensors. On the CPU the answer comes at once; on a device it is computed there, in the device's
// own order of work, and read together with others later: no round trip per tensor. Called under InternalGuard.
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace op_tools {

// A set of kinds of values.
struct Specials {
  bool nan = false, pos_inf = false, neg_inf = false;

  bool any() const { return nan || pos_inf || neg_inf; }
  bool only_neg_inf() const { return neg_inf && !nan && !pos_inf; }
  void add(const Specials& other) {
    nan |= other.nan;
    pos_inf |= other.pos_inf;
    neg_inf |= other.neg_inf;
  }
};

// Has this tensor values that are looked at: a strided floating or complex tensor with elements?
bool may_have_specials(const at::Tensor& tensor);

struct AnswersOnDevice;

// The question about a tensor, and later its answer. Of a complex element both parts count. Where there are NaNs
// infinities may be missing from a device's answer: its minimum and maximum are NaN then.
class NonFiniteQuery {
 public:
  explicit NonFiniteQuery(const at::Tensor& tensor);  // may_have_specials(tensor)
  bool answered() const { return answered_; }
  const Specials& answer() const { return answer_; }

  // Answers all questions that are still open, with a transfer per device, dtype and about a hundred questions.
  static void answer_all(const std::vector<NonFiniteQuery*>& questions);

 private:
  Specials answer_;
  bool answered_ = false;
  std::shared_ptr<AnswersOnDevice> bounds_;  // minimum and maximum, at places `place_` and behind it
  int64_t place_ = 0;
};

// How many there are, and where the first is (an index of the tensor's shape, empty for a 0-dim tensor).
struct SpecialsCount {
  int64_t nan = 0, pos_inf = 0, neg_inf = 0;
  std::vector<int64_t> first;
};
SpecialsCount count_specials(const at::Tensor& tensor);  // waits for the tensor's device

}  // namespace op_tools
