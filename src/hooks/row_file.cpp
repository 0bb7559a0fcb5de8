#include "hooks/row_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "hooks/error.h"
#include "hooks/json_text.h"

namespace op_tools {
namespace {

void append_text(std::string& line, std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
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
  append_number(line, std::get<int64_t>(cell));
}

void append_cell(std::string& line, const Value& value) {
  if (value.is<None>()) return;
  if (const auto* text = value.get_if<std::string>()) return append_text(line, *text);
  if (const auto* number = value.get_if<int64_t>()) return append_number(line, *number);
  if (const auto* number = value.get_if<double>()) return append_number(line, *number);
  append_text(line, json_text(value));
}

}  // namespace

RowFile::RowFile(std::string path, std::vector<std::string> columns)
    : path_(std::move(path)), columns_(std::move(columns)), out_(path_, std::ios::binary | std::ios::trunc) {
  if (!columns_.empty()) add_cells(std::vector<Cell>(columns_.begin(), columns_.end()));
  check();
}

void RowFile::add(const Value& row) {
  if (columns_.empty()) {
    JsonText(line_).add(row);
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

void RowFile::add_cells(c10::ArrayRef<Cell> cells) {
  for (const Cell& cell : cells) {
    if (&cell != cells.begin()) line_ += ',';
    append_cell(line_, cell);
  }
  write_line();
}

void RowFile::write_line() {
  line_ += '\n';
  out_.write(line_.data(), static_cast<std::streamsize>(line_.size()));
  line_.clear();
  check();
}

void RowFile::flush() {
  out_.flush();
  check();
}

void RowFile::check() {
  if (out_) return;
  throw Error(path_ + ": cannot be written: " + std::strerror(errno));
}

}  // namespace op_tools
