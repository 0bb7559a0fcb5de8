// What a tool knows of the values of tensors, as long as they live and are not written. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/sweeps.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

// A number that changes with where in memory the elements are, and with how they are read there; 0 where there is none.
size_t place_of(const at::Tensor& tensor);

// By place in memory, so for all tensors that show the same elements and count their versions together (x.detach(), a
// view of the same form; not x.data, whose writes x does not see). Tensors without a place are known by their address.
// The counter of versions is held: a weak reference to the tensor itself would show (torch.utils.swap_tensors refuses
// it).
template <class T>
class KnownTensors {
 public:
  T find(const at::Tensor& tensor) const {  // T(): not known
    const size_t place = place_of(tensor);
    const auto found = known_.find(key_of(tensor, place));
    if (found == known_.end()) return {};
    const Known& known = found->second;
    const bool is_same =
        !known.is_dead() && known.place == place && known.counts_for(tensor) && known.version == version_of(tensor);
    return is_same ? known.value : T();
  }

  void put(const at::Tensor& tensor, T value) {
    if (tensor.is_inference()) return;  // writes to it are not counted
    if (sweeps_.due(known_.size(), tensor.has_storage() ? tensor.storage().nbytes() : 0)) sweep();
    Known known{tensor.unsafeGetTensorImpl()->version_counter(), version_of(tensor), place_of(tensor),
                std::move(value)};
    if (known.place != 0) known.storage.emplace(tensor.storage().getWeakStorageImpl());
    known_.insert_or_assign(key_of(tensor, known.place), std::move(known));
  }

  void forget(const at::Tensor& tensor) { known_.erase(key_of(tensor, place_of(tensor))); }

 private:
  struct Known {
    c10::VariableVersion counter;
    int64_t version;
    size_t place;
    T value;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage = std::nullopt;

    // No tensor of the program has the counter any more; or only other known ones, which are views of each other.
    bool is_dead() const { return counter.unique() || (storage && storage->expired()); }
    // Has the tensor the same counter? torch compares no two of them.
    bool counts_for(const at::Tensor& tensor) const {
      const c10::VariableVersion& other = tensor.unsafeGetTensorImpl()->version_counter();
      static_assert(sizeof other == sizeof(void*));
      return std::memcmp(&counter, &other, sizeof other) == 0;
    }
  };

  void sweep() {
    for (auto one = known_.begin(); one != known_.end();) {
      one = one->second.is_dead() ? known_.erase(one) : std::next(one);
    }
    sweeps_.done(known_.size());
  }

  static size_t key_of(const at::Tensor& tensor, size_t place) {
    return place != 0 ? place : reinterpret_cast<size_t>(tensor.unsafeGetTensorImpl());
  }

  std::unordered_map<size_t, Known> known_;
  Sweeps sweeps_;
};

}  // namespace op_tools
