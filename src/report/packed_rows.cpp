#include "report/packed_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tensor/copy_memory.h"

namespace op_tools {
namespace {

constexpr size_t kBlock = size_t{1} << 20;

enum class Kind : uint8_t { kText, kWhole, kNumber, kFlag, kList };

template <class T>
void append(std::string& bytes, const T& plain) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&plain), sizeof plain);
}

template <class T>
T taken(const char*& at) {
  T plain;
  std::memcpy(&plain, at, sizeof plain);
  at += sizeof plain;
  return plain;
}

RowSink::Cell taken_cell(const char*& at, std::vector<int64_t>& list) {
  switch (taken<Kind>(at)) {
    case Kind::kWhole:
      return taken<int64_t>(at);
    case Kind::kNumber:
      return taken<double>(at);
    case Kind::kFlag:
      return taken<bool>(at);
    case Kind::kList: {
      list.resize(taken<uint32_t>(at));
      for (int64_t& item : list) item = taken<int64_t>(at);
      return c10::ArrayRef<int64_t>(list);
    }
    case Kind::kText:
      break;
  }
  const auto length = taken<uint32_t>(at);
  const std::string_view text(at, length);
  at += length;
  return text;
}

struct Packer {
  std::string& row;
  void operator()(std::string_view text) const {
    append(row, Kind::kText);
    append(row, static_cast<uint32_t>(text.size()));
    row.append(text);
  }
  void operator()(int64_t whole) const { plain(Kind::kWhole, whole); }
  void operator()(double number) const { plain(Kind::kNumber, number); }
  void operator()(bool flag) const { plain(Kind::kFlag, flag); }
  void operator()(c10::ArrayRef<int64_t> list) const {
    plain(Kind::kList, static_cast<uint32_t>(list.size()));
    for (const int64_t item : list) append(row, item);
  }
  template <class T>
  void plain(Kind kind, T value) const {
    append(row, kind);
    append(row, value);
  }
};

}  // namespace

void PackedRows::put(std::string_view column, const Cell& cell) {
  auto known = columns_.begin() + static_cast<std::ptrdiff_t>(next_column_);
  known = std::find(known, columns_.end(), column);
  if (known == columns_.end()) known = std::find(columns_.begin(), columns_.end(), column);
  if (known == columns_.end()) known = columns_.emplace(columns_.end(), column);
  next_column_ = static_cast<size_t>(known - columns_.begin()) + 1;
  append(row_, static_cast<uint32_t>(next_column_ - 1));
  std::visit(Packer{row_}, cell);
}

void PackedRows::end_row() {
  const size_t needed = sizeof(uint32_t) + row_.size();
  if (blocks_.empty() || blocks_.back().used + needed > std::max(kBlock, needed)) {
    blocks_.push_back({memory_for_copy(std::max(kBlock, needed))});
  }
  Block& block = blocks_.back();
  char* const to = static_cast<char*>(block.memory.get()) + block.used;
  const auto length = static_cast<uint32_t>(row_.size());
  std::memcpy(to, &length, sizeof length);
  std::memcpy(to + sizeof length, row_.data(), length);
  block.used += needed;
  row_.clear();
  next_column_ = 0;
  ++rows_;
}

size_t PackedRows::bytes() const {
  size_t all = 0;
  for (const Block& block : blocks_) all += std::max(kBlock, block.used);
  return all;
}

Values PackedRows::values() const {
  Values rows;
  rows.reserve(rows_);
  std::vector<int64_t> list;
  for (const Block& block : blocks_) {
    const char* at = static_cast<const char*>(block.memory.get());
    for (const char* const end = at + block.used; at < end;) {
      const auto length = taken<uint32_t>(at);
      RowValues row;
      for (const char* const row_end = at + length; at < row_end;) {
        const std::string& column = columns_[taken<uint32_t>(at)];
        row.put(column, taken_cell(at, list));
      }
      rows.push_back(make_dict(std::move(row.items)));
    }
  }
  return rows;
}

}  // namespace op_tools
