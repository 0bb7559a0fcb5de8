#include "fallback/cast_rules.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hooks/op_traits.h"
#include "tensor/value.h"

namespace op_tools {
namespace {

using Pairs = std::vector<std::pair<at::ScalarType, at::ScalarType>>;

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

[[noreturn]] void refuse(const std::string& source, std::string_view item, std::string_view why) {
  throw Error(source + ": '" + std::string(item) + "' " + std::string(why) +
              "; write it as torch.float16->torch.float32, several separated by commas");
}

int kind_of(at::ScalarType dtype) {
  return at::isComplexType(dtype) ? 2 : at::isFloatingType(dtype) ? 1 : 0;
}

DtypeMap parse(std::string_view dict, const std::string& source) {
  Pairs pairs;
  while (!dict.empty()) {
    const size_t comma = dict.find(',');
    const std::string_view item = trimmed(dict.substr(0, comma));
    dict = comma == std::string_view::npos ? std::string_view() : dict.substr(comma + 1);
    if (item.empty()) continue;
    const size_t arrow = item.find("->");
    if (arrow == std::string_view::npos) refuse(source, item, "has no ->");
    const auto from = dtype_from_name(trimmed(item.substr(0, arrow)));
    const auto to = dtype_from_name(trimmed(item.substr(arrow + 2)));
    if (!from || !to) refuse(source, item, "names a dtype that torch does not have");
    if (kind_of(*from) != kind_of(*to))
      refuse(source, item, "casts between floating-point, complex and integer dtypes");
    if (std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == *from; })) {
      refuse(source, item, "casts a dtype for the second time");
    }
    if (*from != *to) pairs.emplace_back(*from, *to);
  }
  if (pairs.empty()) return nullptr;
  return [pairs = std::move(pairs)](at::ScalarType dtype) {
    for (const auto& [from, to] : pairs) {
      if (from == dtype) return to;
    }
    return dtype;
  };
}

}  // namespace

CastRules::CastRules(const CastSettings& settings) : all_(parse(settings.dict, settings.source)) {
  constexpr std::string_view kEnding = "_OP_DTYPE_CAST_DICT";
  for (const auto& [variable, dict] : settings.by_op) {
    by_op_[variable.substr(0, variable.size() - kEnding.size())] = parse(dict, variable);
  }
}

DtypeMap CastRules::for_op(std::string_view name) const {
  if (!by_op_.empty()) {
    const auto entry = by_op_.find(capital_base_name(name));
    if (entry != by_op_.end()) return entry->second;
  }
  return all_;
}

}  // namespace op_tools
