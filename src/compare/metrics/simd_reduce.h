// What the lanes of a vector come to, in the loops of error_loops.cpp and near_halves.cpp. Of no kind of processor: it
// becomes part of the function that it is used in.
#pragma once

#include <algorithm>

namespace op_tools {

// By halves, so that the steps of several sums go on side by side.
template <class T, int kCount>
struct Folding {
  typedef T Lanes __attribute__((vector_size(sizeof(T) * kCount)));
  typedef T Half __attribute__((vector_size(sizeof(T) * kCount / 2)));

  [[gnu::always_inline]] static T sum(const Lanes& value) {
    const Half* const halves = reinterpret_cast<const Half*>(&value);
    return Folding<T, kCount / 2>::sum(halves[0] + halves[1]);
  }
  [[gnu::always_inline]] static T max(const Lanes& value) {
    const Half* const halves = reinterpret_cast<const Half*>(&value);
    return Folding<T, kCount / 2>::max(halves[0] > halves[1] ? halves[0] : halves[1]);
  }
  [[gnu::always_inline]] static T min(const Lanes& value) {
    const Half* const halves = reinterpret_cast<const Half*>(&value);
    return Folding<T, kCount / 2>::min(halves[0] < halves[1] ? halves[0] : halves[1]);
  }
};
template <class T>
struct Folding<T, 2> {
  typedef T Lanes __attribute__((vector_size(sizeof(T) * 2)));
  [[gnu::always_inline]] static T sum(const Lanes& value) { return value[0] + value[1]; }
  [[gnu::always_inline]] static T max(const Lanes& value) { return std::max(value[0], value[1]); }
  [[gnu::always_inline]] static T min(const Lanes& value) { return std::min(value[0], value[1]); }
};

}  // namespace op_tools
