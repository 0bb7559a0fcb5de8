#include "base/option.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/read_options.h"

namespace op_tools {

OptionBase::OptionBase(OptionSet* owner, OptionText text) : text_(std::move(text)) {
  if (text_.variable.empty()) {
    text_.variable = owner->prefix + "_";
    for (const char c : text_.name) text_.variable += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (text_.variable.back() == '_') text_.variable.pop_back();  // of async_
  }
  owner->offsets_.push_back(reinterpret_cast<char*>(this) - reinterpret_cast<char*>(owner));
}

std::string OptionBase::source() const {
  return is_argument() || text_.variable.empty() ? text_.name + "=" : text_.variable;
}

void OptionBase::resolve() {
  if (!is_argument() && !text_.variable.empty()) {
    if (const auto value = environment(text_.variable)) {
      read(*value);
      origin_ = Origin::kVariable;
    }
  }
  if (is_set()) check();
}

std::vector<OptionDescription> OptionSet::describe() const {
  std::vector<OptionDescription> descriptions;
  for (const ptrdiff_t offset : offsets_) {
    const auto* place = reinterpret_cast<const char*>(this) + offset;
    descriptions.push_back(reinterpret_cast<const OptionBase*>(place)->describe());
  }
  return descriptions;
}

size_t choice_from_text(std::string_view source, std::string_view text, const Choices& choices) {
  std::string allowed;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == text) return i;
    allowed.append(i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ").append(choices[i]);
  }
  refuse(source, text, "give " + allowed);
}

bool OptionType<bool>::read(std::string_view source, std::string_view text, const Rule&) {
  std::string word(trimmed(text));
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (word == "1" || word == "true" || word == "on") return true;
  if (word == "0" || word == "false" || word == "off") return false;
  refuse(source, text, "give 0, 1, true, false, on or off");
}

std::string OptionType<bool>::text(bool value, const Rule&) {
  return value ? "on" : "off";
}

int64_t OptionType<int64_t>::read(std::string_view source, std::string_view text, const Rule& rule) {
  return number_from(source, text, rule.least, rule.most);
}

void OptionType<int64_t>::check(std::string_view source, int64_t value, const Rule& rule) {
  check_range(source, std::to_string(value), value, rule.least, rule.most);
}

std::string OptionType<int64_t>::text(int64_t value, const Rule&) {
  return value == kNoLimit ? "no limit" : std::to_string(value);
}

double OptionType<double>::read(std::string_view source, std::string_view text, const Rule&) {
  const std::optional<double> number = number_of(trimmed(text));
  if (!number) refuse(source, text, "give a number");
  return *number;
}

void OptionType<double>::check(std::string_view source, double value, const Rule& rule) {
  const bool allowed = std::isfinite(value) &&
                       (rule == NumberRange::kAny || value > 0 || (rule == NumberRange::kNotNegative && value == 0));
  if (allowed) return;
  refuse(source, text(value, rule),
         rule == NumberRange::kAny           ? "give a finite number"
         : rule == NumberRange::kNotNegative ? "give a number that is not negative"
                                             : "give a number above 0");
}

std::string OptionType<double>::text(double value, const Rule&) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

double number_in_environment(const std::string& variable, NumberRange range, double without) {
  const auto text = environment(variable);
  if (!text) return without;
  const double number = OptionType<double>::read(variable, *text, range);
  OptionType<double>::check(variable, number, range);
  return number;
}

std::string OptionType<std::string>::read(std::string_view, std::string_view text, const Rule&) {
  return std::string(text);
}

std::string OptionType<std::string>::text(const std::string& value, const Rule&) {
  return value.empty() ? "none" : value;
}

std::vector<int64_t> OptionType<std::vector<int64_t>>::read(std::string_view source, std::string_view text,
                                                            const Rule& rule) {
  constexpr uint64_t kMostInRange = 1'000'000;
  std::vector<int64_t> numbers;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view part = trimmed(rest.substr(0, comma));
    const size_t colon = part.find(':');
    const std::string_view begin = trimmed(part.substr(0, colon));
    const bool is_range = colon != std::string_view::npos;
    const auto first = is_range && begin == "first" ? rule.least : integer_of(begin);
    const auto end = is_range ? integer_of(part.substr(colon + 1)) : first;
    const bool is_wrong = !first || !end || (is_range && *first >= *end);
    if (is_wrong || static_cast<uint64_t>(*end) - static_cast<uint64_t>(*first) > kMostInRange) {
      refuse(source, text,
             "give integers of at least " + std::to_string(rule.least) +
                 ", as 0,5; a range without its end, as 3:6; or the first of all, as first:3");
    }
    if (!is_range) numbers.push_back(*first);
    for (int64_t number = *first; number < *end; ++number) numbers.push_back(number);  // check() knows the bounds
    if (comma == std::string_view::npos) return numbers;
    rest.remove_prefix(comma + 1);
  }
}

void OptionType<std::vector<int64_t>>::check(std::string_view source, const std::vector<int64_t>& value,
                                             const Rule& rule) {
  if (value.empty()) refuse(source, "", "name at least one, or leave it out for all");
  for (const int64_t number : value) check_range(source, std::to_string(number), number, rule.least, rule.most);
}

std::string OptionType<std::vector<int64_t>>::text(const std::vector<int64_t>& value, const Rule&) {
  std::string text;
  for (const int64_t number : value) text.append(text.empty() ? "" : ", ").append(std::to_string(number));
  return text.empty() ? "all" : text;
}

}  // namespace op_tools
