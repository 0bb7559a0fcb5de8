// OpOverflowCheck's knowledge of a tensor's values. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "observe/nonfinite.h"
#include "tensor/unwritten_memory.h"

namespace op_tools {

// Facts about a tensor's values at one of its versions. Shared by the calls that it came from and goes to.
struct Flag {
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  Flag() = default;  // sound
  explicit Flag(const at::Tensor& tensor, at::Tensor written = {}) : written(std::move(written)) {
    question_of(tensor);
  }
  static std::shared_ptr<Flag> of_unasked(at::Tensor written = {}) {
    auto flag = std::make_shared<Flag>();
    flag->unasked = true;
    flag->written = std::move(written);
    return flag;
  }

  // Of all values that are known to be sound. Shared: nothing is noted in it.
  static const std::shared_ptr<Flag>& of_sound() {
    static const auto& sound = *new std::shared_ptr<Flag>(std::make_shared<Flag>());
    return sound;
  }
  // The flag of a result: most on the CPU are sound, and known to be so at once.
  static std::shared_ptr<Flag> of_result(const at::Tensor& tensor, at::Tensor written) {
    NonFiniteQuery asked = question_about(tensor, written);
    if (asked.answered() && !asked.answer().any()) return of_sound();
    auto flag = std::make_shared<Flag>();
    flag->written = std::move(written);
    flag->take(std::move(asked), tensor);
    return flag;
  }

  void ask(const at::Tensor& tensor) {  // that it is the flag of, with the values that it is for
    if (std::exchange(unasked, false)) question_of(tensor);
  }
  bool is_sound() const { return !unasked && (!question || (question->answered() && !question->answer().any())); }

  std::optional<NonFiniteQuery> question;
  at::Tensor written;                  // on the CPU, true: the elements that it is about; undefined: all
  std::optional<WeakStorage> storage;  // of the tensor that was asked
  bool unasked = false;                // the answer was not needed yet
  // Known after the call that made it was judged: special values which count.
  Specials unsound;
  Specials allowed;
  bool judged = false;
  bool by_program = false;  // its own data, which it gave in a call

 private:
  static NonFiniteQuery question_about(const at::Tensor& tensor, const at::Tensor& written) {
    return NonFiniteQuery(written.defined() ? written_alone(tensor, written) : tensor);
  }
  void question_of(const at::Tensor& tensor) { take(question_about(tensor, written), tensor); }
  void take(NonFiniteQuery asked, const at::Tensor& tensor) {
    question = std::move(asked);
    if (tensor.has_storage()) storage.emplace(tensor.storage().getWeakStorageImpl());
  }
};
using FlagPtr = std::shared_ptr<Flag>;

}  // namespace op_tools
