#include "base/read_options.h"

#include <locale.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/option.h"

namespace op_tools {
namespace {

[[noreturn]] void refuse_range(std::string_view source, std::string_view shown, int64_t least, int64_t most) {
  std::string allowed = "give an integer";
  if (most != kMaxNumber) {
    allowed += " from " + std::to_string(least) + " to " + std::to_string(most);
  } else if (least != std::numeric_limits<int64_t>::min()) {
    allowed += " of at least " + std::to_string(least);
  }
  refuse(source, shown, allowed);
}

// Digits alone, of a number that does not fit.
bool is_too_large(std::string_view text) {
  const std::string_view digits = trimmed(text);
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
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

std::optional<double> number_of(std::string_view text) {
  const size_t digits = text.starts_with('-') ? 1 : 0;
  // strtod takes leading blanks, a plus sign and hexadecimal digits, too.
  const bool is_hexadecimal = text.find_first_of("xX") != std::string_view::npos;
  if (digits == text.size() || is_hexadecimal || std::string_view(".0123456789iInN").find(text[digits]) == text.npos)
    return std::nullopt;
  static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string copy(text);
  char* end = nullptr;
  const double number = ::strtod_l(copy.c_str(), &end, plain);
  return end == copy.c_str() + copy.size() ? std::optional(number) : std::nullopt;
}

void check_range(std::string_view source, std::string_view shown, int64_t number, int64_t least, int64_t most) {
  if (number < least || number > most) refuse_range(source, shown, least, most);
}

std::optional<int64_t> integer_of(std::string_view text) {
  const std::string_view digits = trimmed(text);
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return failure == std::errc() && end == digits.data() + digits.size() ? std::optional(number) : std::nullopt;
}

int64_t number_from(std::string_view source, std::string_view text, int64_t least, int64_t most) {
  const auto number = integer_of(text);
  if (!number && is_too_large(text)) {
    refuse(source, text, "give an integer of at most " + std::to_string(most));
  }
  if (!number) refuse_range(source, text, least, most);
  check_range(source, text, *number, least, most);
  return *number;
}

std::vector<std::pair<std::string, std::string>> environment_containing(std::string_view part) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || text.substr(0, equals).find(part) == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

}  // namespace op_tools
