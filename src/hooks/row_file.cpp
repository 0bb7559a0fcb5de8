#include "hooks/row_file.h"

#include <algorithm>
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

void append(int64_t number, std::string* out) {
  char buffer[24];
  out->append(buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr);
}

// Rows come by the thousand: what needs no escape is copied, and no tree is built.
void append_text(const std::string& text, std::string* out) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    out->append(1, '"').append(text).append(1, '"');
  } else {
    // Names come from programs and need not be UTF-8.
    out->append(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

void append_json(const Value& value, std::string* out) {
  const auto list = [&](const auto& items, const auto& append_item) {
    const char* between = "[";
    for (const auto& item : items) {
      out->append(std::exchange(between, ","));
      append_item(item);
    }
    out->append(items.empty() ? "[]" : "]");
  };
  if (value.is<None>()) {
    out->append("null");
  } else if (const auto* flag = value.get_if<bool>()) {
    out->append(*flag ? "true" : "false");
  } else if (const auto* number = value.get_if<int64_t>()) {
    append(*number, out);
  } else if (const auto* real = value.get_if<double>()) {
    const std::string digits = number_text(*real);
    if (std::isfinite(*real)) {
      out->append(digits);
      if (digits.find_first_of(".e") == std::string::npos)
        out->append(".0");  // else it would be read as a whole number
    } else {
      append_text(digits, out);
    }
  } else if (const auto* text = value.get_if<std::string>()) {
    append_text(*text, out);
  } else if (const auto* size = value.get_if<Size>()) {
    list(size->sizes, [&](int64_t item) { append(item, out); });
  } else if (const Values* items = sequence_items(value)) {
    list(*items, [&](const Value& item) { append_json(item, out); });
  } else if (const auto* dict = value.get_if<Dict>()) {
    const char* between = "{";
    for (const auto& [key, item] : *dict->items) {
      out->append(std::exchange(between, ","));
      const auto* name = key.get_if<std::string>();
      append_text(name ? *name : describe(key), out);
      out->push_back(':');
      append_json(item, out);
    }
    out->append(dict->items->empty() ? "{}" : "}");
  } else {
    append_text(describe(value), out);
  }
}

void append_cell(const std::string& cell, std::string* out) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) {
    out->append(cell);
    return;
  }
  out->push_back('"');
  for (const char c : cell) {
    if (c == '"') out->push_back('"');
    out->push_back(c);
  }
  out->push_back('"');
}

void append_cell(const Value& value, std::string* out) {
  if (value.is<None>()) return;
  if (const auto* text = value.get_if<std::string>()) return append_cell(*text, out);
  if (const auto* number = value.get_if<int64_t>()) return append(*number, out);
  if (const auto* number = value.get_if<double>()) {
    out->append(number_text(*number));
    return;
  }
  append_cell(json_text(value), out);
}

}  // namespace

RowFile::RowFile(std::string path, std::vector<std::string> columns)
    : path_(std::move(path)), columns_(std::move(columns)), out_(path_, std::ios::binary | std::ios::trunc) {
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (i) line_.push_back(',');
    append_cell(columns_[i], &line_);
  }
  if (!columns_.empty()) write_line();
  check();
}

void RowFile::add(const Value& row) {
  if (columns_.empty()) {
    append_json(row, &line_);
    return write_line();
  }
  const auto& items = *row.get_if<Dict>()->items;
  size_t next = 0;  // rows mostly have the columns' order
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (i) line_.push_back(',');
    for (size_t tried = 0; tried < items.size(); ++tried) {
      const auto& [key, cell] = items[(next + tried) % items.size()];
      const auto* name = key.get_if<std::string>();
      if (!name || *name != columns_[i]) continue;
      append_cell(cell, &line_);
      next += tried + 1;
      break;
    }
  }
  write_line();
}

void RowFile::write_line() {
  line_.push_back('\n');
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

std::string json_text(const Value& value) {
  std::string text;
  append_json(value, &text);
  return text;
}

}  // namespace op_tools
