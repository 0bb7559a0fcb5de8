#include "compare/metrics/tolerance.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iomanip>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/read_options.h"
#include "base/text_table.h"
#include "hooks/op_traits.h"

namespace op_tools {
namespace {

constexpr std::string_view kVariable = "AUTOCOMPARE_ERROR_TOLERANCE";

struct Row {
  c10::ScalarType dtype;
  std::string_view suffix;  // of the environment variable; empty: the dtype cannot be named there
  Tolerance tolerance;      // method allclose
  Rounding rounding;
  SmallValues msprobe;
};

constexpr double power_of_two(int exponent) {
  double value = 1;
  for (int i = 0; i < (exponent < 0 ? -exponent : exponent); ++i) value *= exponent < 0 ? 0.5 : 2.0;
  return value;
}
constexpr double kSingle = power_of_two(-23);

// Float32 and bfloat16 have numbers down to 1e-38, which accelerators set to zero: their spacing stops shrinking
// where a number lost so is worth less than a unit of its own size.
constexpr std::array<Row, 9> kTable{{
    {c10::ScalarType::Half,
     "_FLOAT16",
     {1e-4, 1e-4},
     {power_of_two(-10), kSingle, power_of_two(-14), 65504},
     {power_of_two(-10), power_of_two(-16), power_of_two(-10)}},
    {c10::ScalarType::BFloat16,
     "_BFLOAT16",
     {1e-3, 1e-3},
     {power_of_two(-7), kSingle, power_of_two(-119), 3.3895313892515355e38},
     {power_of_two(-10), power_of_two(-16), power_of_two(-8)}},
    {c10::ScalarType::Float,
     "_FLOAT32",
     {1e-5, 1e-5},
     {kSingle, kSingle, power_of_two(-103), 3.4028234663852886e38},
     {power_of_two(-20), power_of_two(-30), power_of_two(-20)}},
    {c10::ScalarType::Double,
     "_FLOAT64",
     {1e-8, 1e-8},
     {power_of_two(-52), power_of_two(-52), 2.2250738585072014e-308, 1.7976931348623157e308},
     {power_of_two(-40), power_of_two(-60), power_of_two(-40)}},
    // Eight bits: results that differ at all differ by a step of at least 6%, so nothing is let pass.
    {c10::ScalarType::Float8_e4m3fn, "", {0, 0}, {power_of_two(-3), kSingle, power_of_two(-6), 448}, {}},
    {c10::ScalarType::Float8_e4m3fnuz, "", {0, 0}, {power_of_two(-3), kSingle, power_of_two(-7), 240}, {}},
    {c10::ScalarType::Float8_e5m2, "", {0, 0}, {power_of_two(-2), kSingle, power_of_two(-14), 57344}, {}},
    {c10::ScalarType::Float8_e5m2fnuz, "", {0, 0}, {power_of_two(-2), kSingle, power_of_two(-15), 57344}, {}},
    {c10::ScalarType::Float8_e8m0fnu, "", {0, 0}, {1, kSingle, power_of_two(-127), 1.7014118346046923e38}, {}},
}};

//                                           ratio: rmse max ulp   floor: rmse max ulp
constexpr RelativeNumbers kRelativeWide{2, 10, 4, 4, 6, 32};
constexpr RelativeNumbers kRelativeHalf{2, 4, 4, 0.25, 1, 2};

const Row* row_of(c10::ScalarType dtype) {
  if (c10::isComplexType(dtype)) dtype = c10::toRealValueType(dtype);
  const auto row =
      std::find_if(kTable.begin(), kTable.end(), [&](const Row& candidate) { return candidate.dtype == dtype; });
  return row == kTable.end() ? nullptr : &*row;
}

Tolerance parse(const std::string& variable, std::string_view text) {
  const auto number = [&](std::string_view part) {
    const auto first = part.find_first_not_of(" \t");
    const auto last = part.find_last_not_of(" \t");
    if (first != std::string_view::npos) {
      const std::optional<double> value = number_of(part.substr(first, last + 1 - first));
      if (value && std::isfinite(*value) && *value >= 0) return *value;
    }
    throw Error(variable + ": '" + std::string(text) +
                "' is not \"atol,rtol\" (two numbers from 0, for example \"1e-4,1e-4\")");
  };
  const auto comma = text.find(',');
  if (comma == std::string_view::npos) number({});
  return {number(text.substr(0, comma)), number(text.substr(comma + 1))};
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

const Tolerance* ToleranceTable::override_for(std::string_view op_name, std::string_view suffix) const {
  if (overrides_.empty()) return nullptr;
  const std::string general(kVariable);
  const std::string for_op = capital_base_name(op_name) + "_" + general;
  for (const auto& name : {for_op + std::string(suffix), for_op, general + std::string(suffix), general}) {
    if (const auto entry = overrides_.find(name); entry != overrides_.end()) return &entry->second;
  }
  return nullptr;
}

Tolerance ToleranceTable::allclose(std::string_view op_name, c10::ScalarType dtype) const {
  const Row* row = row_of(dtype);
  if (!row) return {};
  const Tolerance* set = override_for(op_name, row->suffix);
  return set ? *set : row->tolerance;
}

bool ToleranceTable::overridden(std::string_view op_name, c10::ScalarType dtype) const {
  const Row* row = row_of(dtype);
  return row && override_for(op_name, row->suffix);
}

Rounding rounding_of(c10::ScalarType dtype) {
  const Row* row = row_of(dtype);
  return row ? row->rounding : Rounding{};
}

// TF32 has as many bits of mantissa as half. CUDA's units cut the others off: either factor loses up to a spacing,
// where rounding loses half of it at most.
double tf32_unit() {
  return 4 * rounding_of(c10::ScalarType::Half).unit;
}

RelativeNumbers relative_numbers(c10::ScalarType dtype) {
  return rounding_of(dtype).unit > kSingle ? kRelativeHalf : kRelativeWide;
}

SmallValues msprobe_absolute(c10::ScalarType dtype) {
  const Row* row = row_of(dtype);
  return row ? row->msprobe : SmallValues{};
}

std::string tolerance_text() {
  const auto number = [](double value) {
    std::ostringstream text;
    text << std::setprecision(3) << value;
    return text.str();
  };
  const auto floor = [&](double ratio, double units) { return number(ratio) + " x CPU + " + number(units); };
  std::vector<std::vector<std::string>> rows;
  for (const Row& row : kTable) {
    const RelativeNumbers numbers = relative_numbers(row.dtype);
    rows.push_back(
        {c10::toString(row.dtype), number(row.rounding.unit), floor(numbers.rmse_ratio, numbers.rmse_floor),
         floor(numbers.max_ratio, numbers.max_floor), floor(numbers.ulp_ratio, numbers.ulp_floor),
         number(row.tolerance.atol) + ", " + number(row.tolerance.rtol),
         number(row.msprobe.atol) + " to " + number(row.msprobe.below) + ", then " + number(row.msprobe.rtol)});
  }
  return "tolerances, version " + std::to_string(kToleranceVersion) + "\n" +
         text_table({{"dtype"}, {"unit"}, {"rmse"}, {"max error"}, {"max ulp"}, {"allclose"}, {"msprobe-absolute"}},
                    rows,
                    /*width=*/160);
}

}  // namespace op_tools
