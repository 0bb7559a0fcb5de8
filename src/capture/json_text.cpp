#include "capture/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace op_tools {
namespace {

template <class Number>
void append_number(std::string& out, Number number) {
  char digits[32];  // a double takes 24 at most
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
  out.append(digits, end);
}

}  // namespace

void JsonText::new_line(size_t depth) {
  out_ += '\n';
  out_.append(depth, ' ');
}

void JsonText::next(std::string_view key) {
  if (open_.empty()) return;
  Open& open = open_.back();
  if (open.any) out_ += open.form == Form::kLines ? "," : ", ";
  open.any = true;
  if (open.form == Form::kLines) new_line(open_.size());
  if (open.end != '}') return;
  text(key);
  out_ += ": ";
}

void JsonText::begin(char start, char end, Form form, std::string_view key) {
  next(key);
  out_ += start;
  open_.push_back({end, form, false});
}

void JsonText::end() {
  const Open open = open_.back();
  open_.pop_back();
  if (open.any && open.form == Form::kLines) new_line(open_.size());
  out_ += open.end;
}

void JsonText::text(std::string_view text) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; });
  if (plain) {
    out_ += '"';
    out_ += text;
    out_ += '"';
  } else {
    // Texts from the program (an error's, a file's name) may be no valid UTF-8: replaced rather than refused.
    out_ += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

void JsonText::number(int64_t number) {
  append_number(out_, number);
}

void JsonText::number(double number) {
  if (std::isfinite(number)) {
    append_number(out_, number);
  } else {
    out_ += "null";
  }
}

void JsonText::numbers(c10::ArrayRef<int64_t> numbers) {
  out_ += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out_ += ", ";
    number(numbers[i]);
  }
  out_ += ']';
}

}  // namespace op_tools
