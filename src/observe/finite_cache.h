// OpOverflowCheck's knowledge of the values of tensors, as long as they live and are not written. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/sweeps.h"
#include "observe/nonfinite.h"
#include "tensor/known_tensors.h"

namespace op_tools {

// Facts about a tensor's values at one of its versions. Shared by the calls that it came from and goes to.
struct Flag {
  Flag() = default;  // sound
  explicit Flag(const at::Tensor& tensor) : question(std::in_place, tensor) {}
  static std::shared_ptr<Flag> of_unasked() {
    auto flag = std::make_shared<Flag>();
    flag->unasked = true;
    return flag;
  }

  void ask(const at::Tensor& tensor) {  // that it is the flag of, with the values that it is for
    if (std::exchange(unasked, false)) question.emplace(tensor);
  }
  bool is_sound() const { return !unasked && (!question || (question->answered() && !question->answer().any())); }

  std::optional<NonFiniteQuery> question;
  bool unasked = false;  // the answer was not needed yet
  // Known after the call that made it was judged: special values which count.
  Specials unsound;
  Specials allowed;
  bool judged = false;
  bool by_program = false;  // its own data, which it gave in a call
};
using FlagPtr = std::shared_ptr<Flag>;

// Memory that was not written since it was allocated. Known by the storage: of a factory's result torch makes
// another tensor, and would make a copy of a tensor whose counter of versions is held elsewhere.
class UnwrittenMemory {
 public:
  void add(const at::Tensor& tensor);
  // After a call that may have: detach_ and similar operators change a tensor's description, not its elements, and
  // count no version.
  void may_have_written(const at::Tensor& tensor);
  bool holds(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  Sweeps sweeps_;
};

}  // namespace op_tools
