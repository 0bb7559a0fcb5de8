// A map for the few tensors (nodes, edges) of a call: an array, searched from the front, without an allocation for
// each entry. From kIndexFrom entries on (a fused optimizer's call has hundreds) an index finds them. One thread at a
// time.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <unordered_map>
#include <utility>

namespace op_tools {

template <class T, class Key = const void*>
class SmallMap {
 public:
  // The entry of `key`, made from nothing when it is new; `second` says whether it is. Valid until the next call.
  std::pair<T*, bool> entry(const Key& key) {
    if (T* known = find(key)) return {known, false};
    entries_.emplace_back(key, T());
    const size_t count = entries_.size();
    if (count == kIndexFrom) {
      for (size_t i = 0; i < count; ++i) index_.emplace(entries_[i].first, i);
    } else if (count > kIndexFrom) {
      index_.emplace(key, count - 1);
    }
    return {&entries_.back().second, true};
  }

  T* find(const Key& key) {
    if (entries_.size() >= kIndexFrom) {
      const auto entry = index_.find(key);
      return entry == index_.end() ? nullptr : &entries_[entry->second].second;
    }
    for (auto& [known, value] : entries_) {
      if (known == key) return &value;
    }
    return nullptr;
  }

  // In the order in which they came.
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kIndexFrom = 16;
  c10::SmallVector<std::pair<Key, T>, 3> entries_;
  std::unordered_map<Key, size_t> index_;
};

}  // namespace op_tools
