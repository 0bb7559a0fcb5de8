// The environment (nothing else reads it, log level aside), and the checks that options share. A value that is not
// allowed is an Error that names its place and the allowed values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/export.h"

namespace op_tools {

// A variable's value; an empty value counts as unset, as everywhere in shells.
OP_TOOLS_API std::optional<std::string> environment(const std::string& variable);
// Names and values of the variables whose names contain `part`, sorted: for settings that take an operator's name in
// front (LINEAR_AUTOCOMPARE_ERROR_TOLERANCE).
std::vector<std::pair<std::string, std::string>> environment_containing(std::string_view part);

// All of the text, blanks around it aside, as an integer; nullopt: it is none, or none that fits.
std::optional<int64_t> integer_of(std::string_view text);
// `source`: the argument or variable that the text stands in. Both bounds are allowed values.
int64_t number_from(std::string_view source, std::string_view text, int64_t least, int64_t most);
void check_range(std::string_view source, std::string_view shown, int64_t number, int64_t least, int64_t most);
[[noreturn]] void refuse(std::string_view source, std::string_view value, std::string_view allowed);

std::string_view trimmed(std::string_view text);  // without leading and trailing blanks

// All of the text as a decimal number, "inf" or "nan", with a point in any locale; nullopt: it is no number.
// (std::from_chars of a double is younger than the libstdc++ of some users: cmake/OpToolsOlderGlibc.cmake.)
OP_TOOLS_API std::optional<double> number_of(std::string_view text);

}  // namespace op_tools
