#include "tensor/element_hash.h"

#include <algorithm>
#include <cstring>

#include "tensor/float_conversion.h"

#ifdef OP_TOOLS_HAS_WIDE
#include <immintrin.h>
#endif

namespace op_tools::element_hash {
namespace {

constexpr int64_t kMostChunks = 32;  // at once

// The sums of the columns of each chunk. The compiler does not find the instruction that multiplies 32-bit parts.
#ifdef OP_TOOLS_HAS_WIDE
#define OP_TOOLS_DEFAULT __attribute__((target("default")))
__attribute__((target("arch=x86-64-v4"))) void add_columns(const char* data, int64_t chunks, uint64_t* sums) {
  for (; chunks > 0; --chunks, data += kChunkBytes, sums += kColumns) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int64_t place = 0; place < kWords; place += 8) {
      const __m512i word = _mm512_loadu_si512(data + place * kWordBytes);
      const __m512i keyed = _mm512_xor_si512(word, _mm512_loadu_si512(kKeys.data() + place));
      // With a mask of all: without a mask, compilers warn of the intrinsics' own variables.
      const __m512i high = _mm512_maskz_srli_epi64(0xFF, keyed, 32);
      const __m512i product = _mm512_maskz_mul_epu32(0xFF, keyed, high);
      sum = _mm512_add_epi64(sum, _mm512_add_epi64(product, word));
    }
    _mm512_storeu_si512(sums, sum);
  }
}
__attribute__((target("arch=x86-64-v3"))) void add_columns(const char* data, int64_t chunks, uint64_t* sums) {
  const __m256i* const keys = reinterpret_cast<const __m256i*>(kKeys.data());
  for (; chunks > 0; --chunks, data += kChunkBytes, sums += kColumns) {
    const __m256i* const words = reinterpret_cast<const __m256i*>(data);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWords / 4; ++i) {
      const __m256i word = _mm256_loadu_si256(words + i);
      const __m256i keyed = _mm256_xor_si256(word, _mm256_loadu_si256(keys + i));
      const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
      sum[i % 2] = _mm256_add_epi64(sum[i % 2], _mm256_add_epi64(product, word));
    }
    std::memcpy(sums, sum, sizeof sum);
  }
}
#else
#define OP_TOOLS_DEFAULT
#endif
OP_TOOLS_DEFAULT void add_columns(const char* data, int64_t chunks, uint64_t* sums) {
  for (; chunks > 0; --chunks, data += kChunkBytes, sums += kColumns) {
    uint64_t words[kWords];
    std::memcpy(words, data, sizeof words);
    std::fill_n(sums, kColumns, 0);
    for (size_t place = 0; place < kWords; ++place) sums[place % kColumns] += keyed_word(words[place], kKeys[place]);
  }
}

// `n` chunks; the first is number `first`.
OP_TOOLS_WIDE uint64_t mix(const uint64_t* sums, int64_t first, int64_t n) {
  typedef int64_t Signed __attribute__((vector_size(kColumns * kWordBytes)));
  typedef uint64_t Unsigned __attribute__((vector_size(kColumns * kWordBytes)));
  const Unsigned columns{0, 1, 2, 3, 4, 5, 6, 7};
  Unsigned mixed{}, placed = (columns + static_cast<uint64_t>(first * kColumns + 1)) * kMixPlace;
  for (int64_t i = 0; i < n; ++i) {
    Unsigned bits;
    std::memcpy(&bits, sums + i * kColumns, sizeof bits);
    bits = bits * kMixWord + placed;
    bits ^= reinterpret_cast<Unsigned>(reinterpret_cast<Signed>(bits) >> 32);
    bits *= kMixWord;
    mixed += bits ^ reinterpret_cast<Unsigned>(reinterpret_cast<Signed>(bits) >> 29);
    placed += kColumns * kMixPlace;
  }
  uint64_t sum = 0;
  for (int64_t column = 0; column < kColumns; ++column) sum += mixed[column];
  return sum;
}

}  // namespace

uint64_t sum_of(const void* data, int64_t first, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  alignas(64) uint64_t sums[kMostChunks * kColumns];
  uint64_t sum = 0;
  for (int64_t chunk = first / kChunkBytes; bytes > 0;) {
    const int64_t whole = std::min(bytes / kChunkBytes, kMostChunks), chunks = std::max<int64_t>(whole, 1);
    if (whole > 0) {
      add_columns(from, whole, sums);
    } else {
      alignas(64) char last[kChunkBytes] = {};
      std::memcpy(last, from, static_cast<size_t>(bytes));
      add_columns(last, 1, sums);
    }
    sum += mix(sums, chunk, chunks);
    chunk += chunks;
    from += chunks * kChunkBytes;
    bytes -= chunks * kChunkBytes;
  }
  return sum;
}

}  // namespace op_tools::element_hash
