// What a tool knows of the values of tensors, as long as they live and are not written. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/sweeps.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

// A number that changes with where in memory the elements are; 0 where there is none.
size_t place_of(const at::Tensor& tensor);

// By tensor. It is known again by its address, and by its counter of versions, which is held: a weak reference to the
// tensor itself would show (torch.utils.swap_tensors refuses it). The counter is shared with the tensor's views, so a
// view that got the address has to show the same elements.
template <class T>
class KnownTensors {
 public:
  T find(const at::Tensor& tensor) const {  // T(): not known
    const auto found = known_.find(tensor.unsafeGetTensorImpl());
    if (found == known_.end()) return {};
    const Known& known = found->second;
    const bool is_same = !known.is_dead() && known.counter.current_version() == known.version &&
                         known.version == version_of(tensor) && known.place == place_of(tensor);
    return is_same ? known.value : T();
  }

  void put(const at::Tensor& tensor, T value) {
    if (tensor.is_inference()) return;  // writes to it are not counted
    if (sweeps_.due(known_.size(), tensor.has_storage() ? tensor.storage().nbytes() : 0)) sweep();
    Known known{tensor.unsafeGetTensorImpl()->version_counter(), version_of(tensor), place_of(tensor),
                std::move(value)};
    if (known.place != 0) known.storage.emplace(tensor.storage().getWeakStorageImpl());
    known_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(known));
  }

 private:
  struct Known {
    c10::VariableVersion counter;
    int64_t version;
    size_t place;
    T value;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage = std::nullopt;

    // No tensor of the program has the counter any more; or only other known ones, which are views of each other.
    bool is_dead() const { return counter.unique() || (storage && storage->expired()); }
  };

  void sweep() {
    for (auto one = known_.begin(); one != known_.end();) {
      one = one->second.is_dead() ? known_.erase(one) : std::next(one);
    }
    sweeps_.done(known_.size());
  }

  std::unordered_map<const c10::TensorImpl*, Known> known_;
  Sweeps sweeps_;
};

}  // namespace op_tools
