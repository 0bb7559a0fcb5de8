#include "base/read_options.h"

#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace op_tools {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool bool_from(std::string_view source, std::string_view text) {
  const std::string word = lower(trimmed(text));
  if (word == "1" || word == "true" || word == "on") return true;
  if (word == "0" || word == "false" || word == "off") return false;
  refuse(source, text, "give 0, 1, true, false, on or off");
}

}  // namespace

void refuse(std::string_view source, std::string_view value, std::string_view allowed) {
  throw Error(std::string(source) + ": '" + std::string(value) + "' is not allowed; " + std::string(allowed));
}

std::optional<std::string> environment(const std::string& variable) {
  const char* text = std::getenv(variable.c_str());
  if (!text || !*text) return std::nullopt;
  return text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

void check_range(std::string_view source, std::string_view shown, int64_t number, int64_t least, int64_t most) {
  if (number >= least && number <= most) return;
  refuse(source, shown,
         "give an integer " + (most == kMaxNumber ? "of at least " + std::to_string(least)
                                                  : "from " + std::to_string(least) + " to " + std::to_string(most)));
}

int64_t number_from(std::string_view source, std::string_view text, int64_t least, int64_t most) {
  const std::string_view digits = trimmed(text);
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // Neither a number nor a whole one nor one of 64 bits: out of every range.
  const bool whole = failure == std::errc() && end == digits.data() + digits.size();
  check_range(source, text, whole ? number : least - 1, least, most);
  return number;
}

TextSetting text_setting(const std::optional<std::string>& argument, std::string_view argument_name,
                         const std::string& variable, std::string_view otherwise) {
  if (argument) return {*argument, std::string(argument_name)};
  if (auto value = environment(variable)) return {std::move(*value), variable};
  return {std::string(otherwise), variable};
}

std::optional<int64_t> number_setting(std::optional<int64_t> argument, std::string_view argument_name,
                                      const std::string& variable, int64_t least, int64_t most) {
  if (argument) {
    check_range(argument_name, std::to_string(*argument), *argument, least, most);
    return argument;
  }
  if (const auto value = environment(variable)) return number_from(variable, *value, least, most);
  return std::nullopt;
}

bool bool_setting(std::optional<bool> argument, const std::string& variable) {
  if (argument) return *argument;
  const auto value = environment(variable);
  return value && bool_from(variable, *value);
}

std::vector<std::pair<std::string, std::string>> environment_containing(std::string_view part) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || text.substr(0, equals).find(part) == std::string_view::npos) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace op_tools
