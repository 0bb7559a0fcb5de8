#include "hooks/row_file.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "hooks/error.h"

namespace op_tools {
namespace {

using Json = nlohmann::ordered_json;

// The shortest text that reads back as the same number.
std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, number);
  return {buffer, written.ptr};
}

Json to_json(const Value& value) {
  if (value.is<None>()) return nullptr;
  if (const auto* flag = value.get_if<bool>()) return *flag;
  if (const auto* number = value.get_if<int64_t>()) return *number;
  if (const auto* number = value.get_if<double>()) {
    if (std::isfinite(*number)) return *number;
    return number_text(*number);
  }
  if (const auto* text = value.get_if<std::string>()) return *text;
  if (const auto* size = value.get_if<Size>()) return size->sizes;
  if (const Values* items = sequence_items(value)) {
    Json list = Json::array();
    for (const Value& item : *items) list.push_back(to_json(item));
    return list;
  }
  if (const auto* dict = value.get_if<Dict>()) {
    Json object = Json::object();
    for (const auto& [key, item] : *dict->items) {
      const auto* text = key.get_if<std::string>();
      object[text ? *text : describe(key)] = to_json(item);
    }
    return object;
  }
  return describe(value);
}

std::string dumped(const Json& json) {
  // Names come from programs and need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

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

void append_cell(std::string& line, const Value& value) {
  if (value.is<None>()) return;
  if (const auto* number = value.get_if<double>()) {
    line += number_text(*number);
  } else if (const auto* text = value.get_if<std::string>()) {
    append_text(line, *text);
  } else {
    append_text(line, dumped(to_json(value)));
  }
}

void append_cell(std::string& line, const RowFile::Cell& cell) {
  if (const auto* text = std::get_if<std::string_view>(&cell)) {
    append_text(line, *text);
  } else if (const auto* number = std::get_if<double>(&cell)) {
    line += number_text(*number);
  } else {
    line += std::to_string(std::get<int64_t>(cell));
  }
}

}  // namespace

RowFile::RowFile(std::string path, std::vector<std::string> columns)
    : path_(std::move(path)), columns_(std::move(columns)), out_(path_, std::ios::binary | std::ios::trunc) {
  if (!columns_.empty()) add_cells(std::vector<Cell>(columns_.begin(), columns_.end()));
  check();
}

void RowFile::add(const Value& row) {
  if (columns_.empty()) {
    out_ << dumped(to_json(row)) << '\n';
  } else {
    line_.clear();
    for (const std::string& column : columns_) {
      if (&column != &columns_.front()) line_ += ',';
      if (const Value* cell = find_key(row, column)) append_cell(line_, *cell);
    }
    out_ << (line_ += '\n');
  }
  check();
}

void RowFile::add_cells(c10::ArrayRef<Cell> cells) {
  line_.clear();
  for (const Cell& cell : cells) {
    if (&cell != cells.begin()) line_ += ',';
    append_cell(line_, cell);
  }
  out_ << (line_ += '\n');
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

std::string json_text(const Value& value) {
  return dumped(to_json(value));
}

}  // namespace op_tools
