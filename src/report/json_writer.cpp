#include "report/json_writer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace op_tools {
namespace {

template <class Number>
void append_digits(std::string& out, Number number) {
  char digits[32];  // a double takes 24 at most
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
  out.append(digits, end);
}

Value value_of(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return json.get<double>();
  if (json.is_number()) return json.get<int64_t>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    Values items;
    for (const nlohmann::json& item : json) items.push_back(value_of(item));
    return make_list(std::move(items));
  }
  if (!json.is_object()) return {};
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, item] : json.items()) items.emplace_back(key, value_of(item));
  return make_dict(std::move(items));
}

}  // namespace

void append_number(std::string& out, double number) {
  if (std::isnan(number)) {
    out += "nan";
  } else if (std::isinf(number)) {
    out += number > 0 ? "inf" : "-inf";
  } else {
    append_digits(out, number);
  }
}

void append_number(std::string& out, int64_t number) {
  append_digits(out, number);
}

std::string_view append_json_number(std::string& out, double number) {
  const bool finite = std::isfinite(number);
  if (!finite) out += '"';
  const size_t start = out.size();
  append_number(out, number);
  const size_t size = out.size() - start;
  if (!finite) {
    out += '"';
  } else if (out.find_first_of(".e", start) == std::string::npos) {
    out += ".0";  // else it would be read as an integer
  }
  return std::string_view(out).substr(start, size);
}

std::string json_text(const Value& value) {
  std::string out;
  JsonWriter(out).add(value);
  return out;
}

void JsonWriter::new_line(size_t depth) {
  out_ += '\n';
  out_.append(depth, ' ');
}

void JsonWriter::next(std::string_view key) {
  if (open_.empty()) return;
  Open& open = open_.back();
  if (open.any) out_ += ',';
  open.any = true;
  if (open.form == Form::kLines) new_line(open_.size());
  if (open.end != '}') return;
  text(key);
  out_ += open.form == Form::kLines ? ": " : ":";
}

void JsonWriter::open(char start, char end, Form form) {
  out_ += start;
  open_.push_back({end, form, false});
}

void JsonWriter::end() {
  const Open open = open_.back();
  open_.pop_back();
  if (open.any && open.form == Form::kLines) new_line(open_.size());
  out_ += open.end;
}

void JsonWriter::text(std::string_view text) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; });
  if (plain) {
    out_ += '"';
    out_ += text;
    out_ += '"';
  } else {
    // Strings from the program (an error's, a file's name) may be no valid UTF-8: replaced rather than refused.
    out_ += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

void JsonWriter::numbers(c10::ArrayRef<int64_t> numbers) {
  out_ += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out_ += ',';
    append_number(out_, numbers[i]);
  }
  out_ += ']';
}

void JsonWriter::tree(const Value& value) {
  if (value.is<None>()) {
    out_ += "null";
  } else if (const auto* flag = value.get_if<bool>()) {
    out_ += *flag ? "true" : "false";
  } else if (const auto* whole = value.get_if<int64_t>()) {
    append_number(out_, *whole);
  } else if (const auto* real = value.get_if<double>()) {
    append_json_number(out_, *real);
  } else if (const auto* words = value.get_if<std::string>()) {
    text(*words);
  } else if (const auto* size = value.get_if<Size>()) {
    numbers(size->sizes);
  } else if (const Values* items = sequence_items(value)) {
    open('[', ']', Form::kOneLine);
    for (const Value& item : *items) add(item);
    end();
  } else if (const auto* dict = value.get_if<Dict>()) {
    open('{', '}', Form::kOneLine);
    for (const auto& [key, item] : *dict->items) {
      const auto* name = key.get_if<std::string>();
      name ? add(*name, item) : add(describe(key), item);
    }
    end();
  } else {
    text(describe(value));
  }
}

Value value_of_json(std::string_view text) {
  constexpr int kDeepest = 100;
  const auto limited = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kDeepest) throw Error("JSON that is nested too deep");
    return true;
  };
  try {
    return value_of(nlohmann::json::parse(text, limited));
  } catch (const nlohmann::json::exception& error) {
    throw Error(std::string("not the JSON expected: ") + error.what());
  }
}

}  // namespace op_tools
