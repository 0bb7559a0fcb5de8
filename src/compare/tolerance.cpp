#include "compare/tolerance.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "hooks/error.h"
#include "hooks/options.h"

namespace op_tools {
namespace {

constexpr std::string_view kVariable = "AUTOCOMPARE_ERROR_TOLERANCE";

struct Row {
  c10::ScalarType dtype;
  std::string_view suffix;  // of the environment variable; empty: the dtype cannot be named there
  Tolerance tolerance;
};

constexpr std::array<Row, 9> kTable{{
    {c10::ScalarType::Half, "_FLOAT16", {1e-4, 1e-4}},
    {c10::ScalarType::BFloat16, "_BFLOAT16", {1e-3, 1e-3}},
    {c10::ScalarType::Float, "_FLOAT32", {1e-5, 1e-5}},
    {c10::ScalarType::Double, "_FLOAT64", {1e-8, 1e-8}},
    // Eight bits: results that differ at all differ by a step of at least 6%, so nothing is let
    // pass.
    {c10::ScalarType::Float8_e4m3fn, "", {0, 0}},
    {c10::ScalarType::Float8_e4m3fnuz, "", {0, 0}},
    {c10::ScalarType::Float8_e5m2, "", {0, 0}},
    {c10::ScalarType::Float8_e5m2fnuz, "", {0, 0}},
    {c10::ScalarType::Float8_e8m0fnu, "", {0, 0}},
}};

Tolerance parse(const std::string& variable, std::string_view text) {
  const auto number = [&](std::string_view part) {
    const auto first = part.find_first_not_of(" \t");
    const auto last = part.find_last_not_of(" \t");
    double value = 0;
    if (first != std::string_view::npos) {
      const char* end = part.data() + last + 1;
      const auto parsed = std::from_chars(part.data() + first, end, value);
      if (parsed.ec == std::errc{} && parsed.ptr == end && std::isfinite(value) && value >= 0) {
        return value;
      }
    }
    throw Error(variable + ": '" + std::string(text) +
                "' is not \"atol,rtol\" (two numbers from 0, for example \"1e-4,1e-4\")");
  };
  const auto comma = text.find(',');
  if (comma == std::string_view::npos) number({});
  return {number(text.substr(0, comma)), number(text.substr(comma + 1))};
}

// torch.nn.functional.linear -> LINEAR, aten::add.Tensor -> ADD, torch.Tensor.__add__ -> __ADD__
std::string op_in_capitals(std::string_view name) {
  if (const auto colons = name.find("::"); colons != std::string_view::npos) {
    name = name.substr(colons + 2);
    name = name.substr(0, name.find('.'));
  } else {
    if (name.ends_with(".__get__")) name.remove_suffix(std::string_view(".__get__").size());
    if (const auto dot = name.rfind('.'); dot != std::string_view::npos) name = name.substr(dot + 1);
  }
  std::string capitals(name);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return capitals;
}

}  // namespace

ToleranceTable ToleranceTable::from_environment() {
  ToleranceTable table;
  for (const auto& [name, value] : environment_containing(kVariable)) {
    const auto at = name.find(kVariable);
    const std::string_view suffix = std::string_view(name).substr(at + kVariable.size());
    const bool known_suffix = suffix.empty() || std::any_of(kTable.begin(), kTable.end(), [&](const Row& row) {
                                return !row.suffix.empty() && row.suffix == suffix;
                              });
    const bool known_prefix = at == 0 || name[at - 1] == '_';
    if (!known_suffix || !known_prefix) {
      throw Error(name + ": no such setting; the names are [<OP>_]" + std::string(kVariable) +
                  "[_FLOAT16|_BFLOAT16|_FLOAT32|_FLOAT64]");
    }
    table.overrides_.emplace(name, parse(name, value));
  }
  return table;
}

Tolerance ToleranceTable::allclose(std::string_view op_name, c10::ScalarType dtype) const {
  if (c10::isComplexType(dtype)) dtype = c10::toRealValueType(dtype);
  const auto row =
      std::find_if(kTable.begin(), kTable.end(), [&](const Row& candidate) { return candidate.dtype == dtype; });
  if (row == kTable.end()) return {};
  if (overrides_.empty()) return row->tolerance;
  const std::string general(kVariable);
  const std::string for_op = op_in_capitals(op_name) + "_" + general;
  const std::string suffix(row->suffix);
  for (const auto& name : {for_op + suffix, for_op, general + suffix, general}) {
    if (const auto found = overrides_.find(name); found != overrides_.end()) return found->second;
  }
  return row->tolerance;
}

}  // namespace op_tools
