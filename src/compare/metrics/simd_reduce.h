// Sum, minimum and maximum over the lanes of a SIMD vector, for error_kernels.cpp and float16_kernels.cpp. Always
// inlined, so that it is compiled for the instruction set of its caller.
#pragma once

#include <algorithm>

namespace op_tools {

// Folds the vector in two in each step, so that the processor overlaps the steps of several sums.
template <class T, int kCount>
struct LaneReduction {
  typedef T Lanes __attribute__((vector_size(sizeof(T) * kCount)));
  typedef T HalfVector __attribute__((vector_size(sizeof(T) * kCount / 2)));

  [[gnu::always_inline]] static T sum(const Lanes& value) {
    const HalfVector* const parts = reinterpret_cast<const HalfVector*>(&value);
    return LaneReduction<T, kCount / 2>::sum(parts[0] + parts[1]);
  }
  [[gnu::always_inline]] static T max(const Lanes& value) {
    const HalfVector* const parts = reinterpret_cast<const HalfVector*>(&value);
    return LaneReduction<T, kCount / 2>::max(parts[0] > parts[1] ? parts[0] : parts[1]);
  }
  [[gnu::always_inline]] static T min(const Lanes& value) {
    const HalfVector* const parts = reinterpret_cast<const HalfVector*>(&value);
    return LaneReduction<T, kCount / 2>::min(parts[0] < parts[1] ? parts[0] : parts[1]);
  }
};
template <class T>
struct LaneReduction<T, 2> {
  typedef T Lanes __attribute__((vector_size(sizeof(T) * 2)));
  [[gnu::always_inline]] static T sum(const Lanes& value) { return value[0] + value[1]; }
  [[gnu::always_inline]] static T max(const Lanes& value) { return std::max(value[0], value[1]); }
  [[gnu::always_inline]] static T min(const Lanes& value) { return std::min(value[0], value[1]); }
};

}  // namespace op_tools
