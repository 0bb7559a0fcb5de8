// The small language of the rules of python_names.cpp, applied to a call.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/read_options.h"
#include "run_op_from_data/python_names.h"

namespace op_tools::replay {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Splits at commas outside parentheses.
std::vector<std::string_view> items_of(std::string_view text) {
  std::vector<std::string_view> items;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(') ++depth;
    if (i < text.size() && text[i] == ')') --depth;
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      if (const auto item = trimmed(text.substr(begin, i - begin)); !item.empty()) items.push_back(item);
      begin = i + 1;
    }
  }
  return items;
}

std::optional<Value> literal(std::string_view text) {
  if (text == "None") return Value();
  if (text == "True") return Value(true);
  if (text == "False") return Value(false);
  if (text.front() == '\'') return Value(std::string(text.substr(1, text.size() - 2)));
  const char* end = text.data() + text.size();
  int64_t integer = 0;
  if (const auto parsed = std::from_chars(text.data(), end, integer); parsed.ptr == end) return Value(integer);
  if (const std::optional<double> number = number_of(text)) return Value(*number);
  const auto& dtypes = c10::getStringToDtypeMap();
  if (const auto entry = dtypes.find(std::string(text)); entry != dtypes.end()) return Value(entry->second);
  return std::nullopt;
}

bool same_plain_value(const Value& a, const Value& b) {
  if (a.index() != b.index()) return false;
  if (a.is<None>()) return true;
  if (const auto* flag = a.get_if<bool>()) return *flag == *b.get_if<bool>();
  if (const auto* number = a.get_if<int64_t>()) return *number == *b.get_if<int64_t>();
  if (const auto* number = a.get_if<double>()) return *number == *b.get_if<double>();
  if (const auto* text = a.get_if<std::string>()) return *text == *b.get_if<std::string>();
  return false;
}

bool is_of_kind(const Value& value, std::string_view kind) {
  if (kind.empty()) return true;
  if (kind == "tensor") return value.is<at::Tensor>();
  if (kind == "dtype") return value.is<at::ScalarType>();
  if (kind == "device") return value.is<c10::Device>() || value.is<std::string>() || value.is<int64_t>();
  if (kind == "int") return value.is<int64_t>();
  if (kind == "number") return value.is<int64_t>() || value.is<double>();
  if (kind == "str") return value.is<std::string>();
  if (kind == "seq") return sequence_items(value) || value.is<Size>();
  throw Error("python_names.cpp: no such kind: " + std::string(kind));
}

// The functions that rules may use. nullopt: not for this value.
using Function = std::optional<Value> (*)(const Values&);

template <size_t N>
std::optional<Value> word_to_number(const Value& value, const std::array<std::string_view, N>& words) {
  const auto* text = value.get_if<std::string>();
  const auto word = text ? std::find(words.begin(), words.end(), *text) : words.end();
  if (word == words.end()) return std::nullopt;
  return Value(static_cast<int64_t>(word - words.begin()));
}

const std::map<std::string_view, Function>& functions() {
  static const auto& table = *new std::map<std::string_view, Function>{
      {"reduction",
       [](const Values& v) {
         return word_to_number<3>(v[0], {"none", "mean", "sum"});
       }},
      {"bag_mode",
       [](const Values& v) {
         return word_to_number<3>(v[0], {"sum", "mean", "max"});
       }},
      {"sample_mode",
       [](const Values& v) {
         return word_to_number<3>(v[0], {"bilinear", "nearest", "bicubic"});
       }},
      {"sample_padding",
       [](const Values& v) {
         return word_to_number<3>(v[0], {"zeros", "border", "reflection"});
       }},
      {"cdist_mode",
       [](const Values& v) -> std::optional<Value> {
         const auto* text = v[0].get_if<std::string>();
         if (text && *text == "use_mm_for_euclid_dist_if_necessary") return Value();
         return word_to_number<3>(v[0], {"", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"});
       }},
      {"or_empty", [](const Values& v) -> std::optional<Value> { return v[0].is<None>() ? make_list({}) : v[0]; }},
      {"or_false", [](const Values& v) -> std::optional<Value> { return v[0].is<None>() ? Value(false) : v[0]; }},
      {"pair",
       [](const Values& v) -> std::optional<Value> {
         return v[0].is<int64_t>() ? make_list({v[0], v[0]}) : v[0];
       }},
      // The operands of f(a, b) and of f([a, b]).
      {"flat",
       [](const Values& v) -> std::optional<Value> {
         const Values* items = sequence_items(v[0]);
         return items && items->size() == 1 && sequence_items((*items)[0]) ? (*items)[0] : v[0];
       }},
      // A row of a matrix, counted from its end when negative.
      {"row",
       [](const Values& v) -> std::optional<Value> {
         const auto* matrix = v[0].get_if<at::Tensor>();
         const auto* row = v[1].get_if<int64_t>();
         if (!matrix || !row || matrix->dim() == 0) return std::nullopt;
         return Value(*row < 0 ? *row + matrix->size(0) : *row);
       }},
      {"device_of",
       [](const Values& v) -> std::optional<Value> {
         const auto* tensor = v[0].get_if<at::Tensor>();
         if (!tensor) return std::nullopt;
         return Value(tensor->device());
       }},
  };
  return table;
}

using Parameters = std::map<std::string_view, Value>;

// An item of a rule's parameters: name[:kind][=default | ==value], or *name for all others.
struct Parameter {
  explicit Parameter(std::string_view item) : takes_rest(item.front() == '*') {
    if (takes_rest) item.remove_prefix(1);
    const auto equals = item.find('=');
    is_fixed = equals != std::string_view::npos && item.substr(equals).starts_with("==");
    name = item.substr(0, equals);
    if (const auto colon = name.find(':'); colon != std::string_view::npos) {
      kind = name.substr(colon + 1);
      name = name.substr(0, colon);
    }
    if (equals != std::string_view::npos) wanted = literal(item.substr(equals + (is_fixed ? 2 : 1)));
  }

  std::string_view name, kind;
  bool takes_rest;
  bool is_fixed = false;        // the value must be `wanted`
  std::optional<Value> wanted;  // else the default
};

// The call's arguments by the rule's parameter names; nothing where they do not fit.
std::optional<Parameters> bind_parameters(const NameRule& rule, const Values& args, const Keywords& keywords) {
  Parameters parameters;
  size_t next = 0;
  size_t used_keywords = 0;
  for (const std::string_view item : items_of(rule.parameters)) {
    const Parameter parameter(item);
    std::optional<Value> value;
    if (parameter.takes_rest) {
      value = make_list(Values(args.begin() + static_cast<ptrdiff_t>(next), args.end()));
      next = args.size();
    } else if (next < args.size()) {
      value = args[next++];
    }
    for (const auto& [keyword, argument] : keywords) {
      if (keyword != parameter.name) continue;
      if (value) return std::nullopt;
      value = argument;
      ++used_keywords;
    }
    if (!value) value = parameter.wanted;
    if (!value || !is_of_kind(*value, parameter.kind)) return std::nullopt;
    if (parameter.is_fixed && !same_plain_value(*value, *parameter.wanted)) return std::nullopt;
    parameters[parameter.name] = std::move(*value);
  }
  if (next != args.size() || used_keywords != keywords.size()) return std::nullopt;
  return parameters;
}

// An expression of a rule's arguments: a parameter, a literal, or a function of such.
std::optional<Value> evaluate(std::string_view text, const Parameters& parameters) {
  const auto open = text.find('(');
  if (open == std::string_view::npos) {
    if (const auto entry = parameters.find(text); entry != parameters.end()) return entry->second;
    return literal(text);
  }
  const auto function = functions().find(text.substr(0, open));
  if (function == functions().end()) throw Error("python_names.cpp: no such function: " + std::string(text));
  Values operands;
  for (const auto operand : items_of(text.substr(open + 1, text.size() - open - 2))) {
    operands.push_back(evaluate(operand, parameters).value_or(Value()));
  }
  return function->second(operands);
}

}  // namespace

std::optional<Keywords> apply(const NameRule& rule, const Values& args, const Keywords& keywords) {
  const auto parameters = bind_parameters(rule, args, keywords);
  if (!parameters) return std::nullopt;
  Keywords result;
  for (const std::string_view item : items_of(rule.arguments)) {
    const auto equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string_view text = equals == std::string_view::npos ? item : item.substr(equals + 1);
    std::optional<Value> value = evaluate(text, *parameters);
    if (!value) return std::nullopt;
    result.emplace_back(name, std::move(*value));
  }
  return result;
}

}  // namespace op_tools::replay
