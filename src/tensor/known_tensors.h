// A tool's knowledge of the values of tensors, as long as they live and are not written. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/sweeps.h"
#include "tensor/plain_tensor.h"

namespace op_tools {

// A number that changes with where in memory the elements are, and with how they are read there; 0 where there is none.
size_t place_of(const at::Tensor& tensor);
// The same for all views that show the same elements in the same order.
size_t place_of_elements(const at::Tensor& tensor);

// By place in memory, so for all tensors that show the same elements and count their versions together (x.detach(), a
// view of the same form). Writes that these versions do not count (to x.data, under a guard that puts the version back)
// are known from written(). Tensors without a place are known by their address.
// The counter of versions is held: a weak reference to the tensor itself would show (torch.utils.swap_tensors refuses
// it).
template <class T>
class KnownTensors {
 public:
  T find(const at::Tensor& tensor) const { return find(tensor, place_of(tensor)); }  // T(): not known
  T find(const at::Tensor& tensor, size_t place) const {
    const auto entry = known_.find(key_of(tensor, place));
    if (entry == known_.end()) return {};
    const Known& known = entry->second;
    const bool is_same = !known.is_dead() && known.place == place && known.counts_for(tensor) &&
                         known.version == version_of(tensor) && !was_written_after(tensor, known.time);
    return is_same ? known.value : T();
  }

  void put(const at::Tensor& tensor, T value) { put(tensor, place_of(tensor), std::move(value)); }
  void put(const at::Tensor& tensor, size_t place, T value) {
    if (tensor.is_inference()) return;  // writes to it are not counted
    if (sweeps_.due(known_.size(), storage_bytes(tensor))) sweep();
    Known known{tensor.unsafeGetTensorImpl()->version_counter(), version_of(tensor), place, ++time_, std::move(value)};
    if (known.place != 0) known.storage.emplace(tensor.storage().getWeakStorageImpl());
    known_.insert_or_assign(key_of(tensor, known.place), std::move(known));
  }

  // A call has written the tensor: nothing is known any more of others that were known before and lie in its memory.
  // Of those that are gone, too: a view that is made again has the place and the counter of its predecessor; where the
  // counter moved (`counted`) that shows it.
  void written(const at::Tensor& tensor, bool counted) {
    if (!tensor.has_storage() || (counted && tensor.storage().use_count() == 1)) return;
    if (writes_.size() >= kMostWrites + known_.size()) sweep();
    writes_[tensor.storage().unsafeGetStorageImpl()] = ++time_;
  }

  void forget(const at::Tensor& tensor) { known_.erase(key_of(tensor, place_of(tensor))); }

 private:
  struct Known {
    c10::VariableVersion counter;
    int64_t version;
    size_t place;
    uint64_t time;  // when it was put, in steps of time_
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

  bool was_written_after(const at::Tensor& tensor, uint64_t time) const {
    if (writes_.empty() || !tensor.has_storage()) return false;
    const auto entry = writes_.find(tensor.storage().unsafeGetStorageImpl());
    return entry != writes_.end() && entry->second > time;
  }

  void sweep() {
    for (auto entry = known_.begin(); entry != known_.end();) {
      if (entry->second.is_dead()) {
        entry = known_.erase(entry);
      } else {
        ++entry;
      }
    }
    sweeps_.done(known_.size());
    std::unordered_map<const c10::StorageImpl*, uint64_t> writes;
    for (const auto& [key, known] : known_) {
      if (!known.storage) continue;
      const auto entry = writes_.find(known.storage->_unsafe_get_target());
      if (entry != writes_.end()) writes.insert(*entry);
    }
    writes_ = std::move(writes);
  }

  static size_t key_of(const at::Tensor& tensor, size_t place) {
    return place != 0 ? place : reinterpret_cast<size_t>(tensor.unsafeGetTensorImpl());
  }

  static constexpr size_t kMostWrites = 4096;

  ska::flat_hash_map<size_t, Known> known_;
  std::unordered_map<const c10::StorageImpl*, uint64_t> writes_;  // the last write; also of memory that is gone
  uint64_t time_ = 0;                                             // grows with each put and write
  Sweeps sweeps_;
};

}  // namespace op_tools
