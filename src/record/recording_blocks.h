// How rows stand in a recording's file (recording_file.h), for the writer and the reader alone.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "record/recording.h"

namespace op_tools::recording_blocks {

inline constexpr std::string_view kMagic = "OPREC03\n";
inline constexpr std::string_view kSuffix = ".oprec";
inline constexpr uint32_t kBlockMark = 0x4B434C42;  // "BLCK"

enum BlockKind : uint32_t { kHeader = 1, kRows = 2, kEnd = 3, kNote = 4 };

struct BlockHead {
  uint32_t kind = 0;
  uint32_t mark = kBlockMark;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(BlockHead) == 24);

// A block of rows begins with it. Then, without gaps: the lengths of the strings and of the lists (u32 each), values,
// uses, calls and rows of values as they are in memory, the prints of these rows, the numbers of all lists, the bytes
// of all strings.
struct RowCounts {
  uint32_t strings = 0, lists = 0, values = 0, uses = 0, calls = 0, rows = 0;
};
static_assert(sizeof(RowCounts) == 24);

// The file has the rows as they are in memory. The byte of RecordedValue::by_device and `written`:
inline constexpr size_t kFlagsOfValue = 3;
inline constexpr uint8_t kMostFlagsOfValue = 2 * static_cast<uint8_t>(WrittenPart::kUnknown) + 1;
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(RecordedValue) == 128 && offsetof(RecordedValue, known) == 2 &&
              offsetof(RecordedValue, producer) == 4 && offsetof(RecordedValue, hash) == 32 &&
              offsetof(RecordedValue, min) == 64 && offsetof(RecordedValue, projections) == 96);
static_assert(sizeof(RecordedUse) == 8);
static_assert(sizeof(RecordedRows) == 16 && offsetof(RecordedRows, count) == 12 && sizeof(RowPrint) == 48);
static_assert(sizeof(RecordedCall) == 80 && offsetof(RecordedCall, op) == 24 && offsetof(RecordedCall, thread) == 48 &&
              offsetof(RecordedCall, level) == 72 && offsetof(RecordedCall, grad_enabled) == 74);

uint64_t checksum(const BlockHead& head, std::string_view payload);

}  // namespace op_tools::recording_blocks
