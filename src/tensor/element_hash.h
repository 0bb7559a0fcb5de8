// The hash of a tensor's elements: of their bytes in the order of their indices, filled up with zeros to whole chunks.
// It can be computed chunk by chunk in any order, and by torch's own operators on a device. Files have such hashes
// (record/recording_file.h): to change it is to change their version. Any thread.
//
// A chunk is eight rows of eight words, each of eight bytes. A word, turned by the key of its place, becomes the
// product of its upper and its lower 32 bits; that product and the word itself are added up over each column. The sum
// of a column is mixed with the column's number, and the mixed sums of all columns are added up. Shifts of mixed_word()
// repeat the sign, as a device's do.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/sign_pattern.h"

namespace op_tools::element_hash {

inline constexpr uint64_t kMixWord = 0x9E3779B97F4A7C15u, kMixPlace = 0xD1B54A32D192ED03u;
inline constexpr int64_t kWordBytes = 8, kColumns = 8, kWords = 64, kChunkBytes = kWords * kWordBytes;

// By the place of a word in its chunk.
constexpr std::array<uint64_t, kWords> keys() {
  std::array<uint64_t, kWords> keys{};
  for (uint64_t i = 0; i < kWords; ++i) keys[i] = sign_pattern::scrambled(kMixPlace + i);
  return keys;
}
inline constexpr std::array<uint64_t, kWords> kKeys = keys();

constexpr uint64_t keyed_word(uint64_t word, uint64_t key) {
  const uint64_t keyed = word ^ key;
  return (keyed & 0xFFFFFFFFu) * (keyed >> 32) + word;
}

// `column` counts those of all chunks.
constexpr uint64_t mixed_word(uint64_t sum, uint64_t column) {
  uint64_t bits = sum * kMixWord + (column + 1) * kMixPlace;
  bits ^= static_cast<uint64_t>(static_cast<int64_t>(bits) >> 32);
  bits *= kMixWord;
  return bits ^ static_cast<uint64_t>(static_cast<int64_t>(bits) >> 29);
}

// The last step: of the sum over all columns.
constexpr uint64_t finished(uint64_t sum, int64_t numel) {
  sum += static_cast<uint64_t>(numel) * kMixPlace;
  sum ^= sum >> 31;
  sum *= kMixWord;
  return sum ^ sum >> 32;
}

// The sum over the columns of `bytes` bytes at `data`, which are the tensor's from byte `first` on: a multiple of
// kChunkBytes.
uint64_t sum_of(const void* data, int64_t first, int64_t bytes);

}  // namespace op_tools::element_hash
