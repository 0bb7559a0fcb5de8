// The signs of projections: sums of a tensor's elements in which each has the sign +1 or -1 by its index alone. Over
// random signs the square of such a sum is, in the mean, the sum of the squares; so the difference of two tensors'
// projections estimates the norm of their difference, without either tensor. Complex elements count as two, the real
// part first.
//
// The sign of element i is a product: of its lane (i % 8), of its group (i / 8 % 64) and of its block (i / 512). So a
// loop over vectors needs a single sign per vector, and a device a small table. Files have such sums: the pattern never
// changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace op_tools::sign_pattern {

inline constexpr int64_t kProjections = 4;
// Larger numbers, and NaN, are left out of the sums: masks (the lowest float32, minus infinity) would be
// all that is left of them.
inline constexpr double kMost = 0x1p100;
inline constexpr int64_t kLanes = 8, kGroups = 64, kBlock = kLanes * kGroups;

constexpr uint64_t scrambled(uint64_t number) {  // the finisher of splitmix64
  number += 0x9E3779B97F4A7C15u;
  number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9u;
  number = (number ^ number >> 27) * 0x94D049BB133111EBu;
  return number ^ number >> 31;
}

// Bits that are set are minus signs. In none of them are as many set as not: a difference that is the same everywhere
// would vanish.
inline constexpr std::array<uint8_t, kProjections> kLaneBits{0b00100110, 0b01011101, 0b10000010, 0b01101000};

constexpr double sign(bool minus) {
  return minus ? -1.0 : 1.0;
}
constexpr double lane_sign(int64_t projection, int64_t lane) {
  return sign(kLaneBits[static_cast<size_t>(projection)] >> lane & 1);
}
// The signs of all projections, a bit each: set is minus. The product of two signs is the bits' exclusive or.
inline constexpr uint64_t kPatterns = 1 << kProjections;
constexpr uint64_t group_pattern(int64_t group) {
  return scrambled(static_cast<uint64_t>(group) + 1) % kPatterns;
}
constexpr uint64_t block_pattern(int64_t block) {
  return scrambled(~static_cast<uint64_t>(block)) % kPatterns;
}
constexpr double pattern_sign(int64_t projection, uint64_t pattern) {
  return sign(pattern >> projection & 1);
}
constexpr double block_sign(int64_t projection, int64_t block) {
  return pattern_sign(projection, block_pattern(block));
}
constexpr double element_sign(int64_t projection, int64_t index) {
  return lane_sign(projection, index % kLanes) * pattern_sign(projection, group_pattern(index / kLanes % kGroups)) *
         block_sign(projection, index / kBlock);
}

}  // namespace op_tools::sign_pattern
