#include "report/row_file.h"

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/disk_time.h"
#include "base/error.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/text_table.h"
#include "report/json_writer.h"

namespace op_tools {
namespace {

constexpr size_t kBuffer = size_t{64} << 10;

void append_text(std::string& line, std::string_view text) {
  // find_first_of() asks the C library about each character by itself.
  if (std::none_of(text.begin(), text.end(), [](char c) { return c == ',' || c == '"' || c == '\r' || c == '\n'; })) {
    line += text;
    return;
  }
  line += '"';
  for (const char c : text) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

void append_cell(std::string& line, const RowFile::Cell& cell) {
  if (const auto* text = std::get_if<std::string_view>(&cell)) return append_text(line, *text);
  if (const auto* number = std::get_if<double>(&cell)) return append_number(line, *number);
  if (const auto* whole = std::get_if<int64_t>(&cell)) return append_number(line, *whole);
  if (const auto* flag = std::get_if<bool>(&cell)) return append_text(line, *flag ? "true" : "false");
  std::string list;
  JsonWriter(list).add(std::get<c10::ArrayRef<int64_t>>(cell));
  append_text(line, list);
}

void append_cell(std::string& line, const Value& value) {
  if (value.is<None>()) return;
  if (const auto* text = value.get_if<std::string>()) return append_text(line, *text);
  if (const auto* number = value.get_if<int64_t>()) return append_number(line, *number);
  if (const auto* number = value.get_if<double>()) return append_number(line, *number);
  append_text(line, json_text(value));
}

// Leaked: files are closed while the process exits.
struct FlushedRows {
  FlushedRows() {
    keep_free_in_children([]() -> std::mutex& { return get().mutex; });
  }

  static FlushedRows& get() {
    static auto* const all = new FlushedRows;
    return *all;
  }

  std::mutex mutex;
  std::map<std::string, uint64_t> by_path;
};

}  // namespace

void note_row_count(const std::string& path, uint64_t rows) {
  FlushedRows& flushed = FlushedRows::get();
  const std::lock_guard<std::mutex> lock(flushed.mutex);
  flushed.by_path[path] = rows;
}

std::map<std::string, uint64_t> take_row_counts(const std::string& folder) {
  FlushedRows& flushed = FlushedRows::get();
  const std::lock_guard<std::mutex> lock(flushed.mutex);
  const std::string begin = folder + "/";
  std::map<std::string, uint64_t> counts;
  auto entry = flushed.by_path.lower_bound(begin);
  while (entry != flushed.by_path.end() && entry->first.starts_with(begin)) {
    counts.emplace(entry->first.substr(begin.size()), entry->second);
    entry = flushed.by_path.erase(entry);
  }
  return counts;
}

RowFile::RowFile(std::string path, std::vector<std::string> columns)
    : columns_(std::move(columns)),
      file_(std::move(path), disk_silence(), AppendedFile::Present::kReplaced),
      most_bytes_(static_cast<uint64_t>(std::min(1e9 * most_gigabytes_of_rows(), 9e18))) {
  if (columns_.empty()) return;
  add_cells(std::vector<Cell>(columns_.begin(), columns_.end()));
  rows_ = 0;
}

RowFile::~RowFile() {
  try {
    hand_over();
  } catch (const Error& error) {
    log::debug(error.what());
  }
}

void RowFile::add(const Value& row) {
  if (columns_.empty()) {
    JsonWriter(line_).add(row);
    return write_line();
  }
  const auto& items = *row.get_if<Dict>()->items;
  size_t next = 0;  // rows mostly have the columns' order
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (i) line_ += ',';
    for (size_t tried = 0; tried < items.size(); ++tried) {
      const auto& [key, cell] = items[(next + tried) % items.size()];
      const auto* name = key.get_if<std::string>();
      if (!name || *name != columns_[i]) continue;
      append_cell(line_, cell);
      next += tried + 1;
      break;
    }
  }
  write_line();
}

void RowValues::put(std::string_view column, const Cell& cell) {
  const auto as_value = [](const auto& content) -> Value {
    using Content = std::decay_t<decltype(content)>;
    if constexpr (std::is_same_v<Content, std::string_view>)
      return std::string(content);
    else if constexpr (std::is_same_v<Content, c10::ArrayRef<int64_t>>)
      return make_list(Values(content.begin(), content.end()));
    else
      return content;
  };
  items.emplace_back(std::string(column), std::visit(as_value, cell));
}

void RowFile::begin_line() {
  if (line_.empty()) json_.begin_object(JsonWriter::Form::kOneLine);
}

void RowFile::put(std::string_view column, const Cell& cell) {
  if (columns_.empty()) {
    begin_line();
    return std::visit([&](const auto& content) { json_.add(column, content); }, cell);
  }
  next_column(column);
  append_cell(line_, cell);
}

// Most cells are numbers, and most of a number's cost is its digits.
void RowFile::put(RowFile& csv, RowFile& lines, std::string_view column, const Cell& cell) {
  const auto* number = std::get_if<double>(&cell);
  const auto* list = std::get_if<c10::ArrayRef<int64_t>>(&cell);
  if (!number && !list) {
    csv.put(column, cell);
    return lines.put(column, cell);
  }
  csv.next_column(column);
  lines.begin_line();
  thread_local std::string json;
  json.clear();
  if (number) {
    csv.line_ += append_json_number(json, *number);
  } else {
    JsonWriter(json).add(*list);
    append_text(csv.line_, json);
  }
  lines.json_.add_json(column, json);
}

// The next cell goes under this title.
void RowFile::next_column(std::string_view column) {
  for (; cells_ < columns_.size() && columns_[cells_] != column; ++cells_) line_ += cells_ ? "," : "";
  if (cells_ == columns_.size()) throw Error(path() + ": it has no column " + std::string(column) + " at this place");
  line_ += cells_++ ? "," : "";
}

void RowFile::end_row() {
  if (columns_.empty()) {
    json_.end();
  } else {
    for (; cells_ < columns_.size(); ++cells_) line_ += cells_ ? "," : "";
    cells_ = 0;
  }
  write_line();
}

void RowFile::add_cells(c10::ArrayRef<Cell> cells) {
  for (const Cell& cell : cells) {
    if (&cell != cells.begin()) line_ += ',';
    append_cell(line_, cell);
  }
  write_line();
}

bool RowFile::has_room() {
  if (bytes_ < most_bytes_) return true;
  if (!std::exchange(is_full_said_, true)) {
    log::warn(path() + ": has " + bytes_text(bytes_) +
              " (OP_TOOLS_MAX_ROWS_GB): further rows are left out; results and summaries count all calls");
  }
  return false;
}

void RowFile::write_line() {
  line_ += '\n';
  bytes_ += line_.size();
  ++rows_;
  lines_ += line_;
  line_.clear();
  if (lines_.size() >= kBuffer) hand_over();
}

void RowFile::hand_over() {
  if (lines_.empty()) return;
  const std::string lines = std::exchange(lines_, {});
  file_.append(lines);
}

void RowFile::flush() {
  hand_over();
  file_.flush();
  note_row_count(path(), rows_);
}

}  // namespace op_tools
