#include "hooks/tool.h"

#include "base/error.h"

namespace op_tools {
namespace {

[[noreturn]] void refuse(std::string_view name, const Value& value, std::string_view wanted) {
  throw Error(std::string(name) + "=: " + describe(value) + " is not " + std::string(wanted));
}

}  // namespace

Settings::Settings(const Value& dict) : dict_(dict) {
  if (!dict.is<Dict>()) throw Error("the settings of a tool are a dict, not " + describe(dict));
}

const Value* Settings::take(std::string_view name) {
  read_.emplace(name);
  const Value* value = find_key(dict_, name);
  return value && value->is<None>() ? nullptr : value;
}

void Settings::read(std::string_view name, std::optional<bool>& to) {
  const Value* value = take(name);
  if (!value) return;
  const bool* flag = value->get_if<bool>();
  if (!flag) refuse(name, *value, "True or False");
  to = *flag;
}

void Settings::read(std::string_view name, std::optional<int64_t>& to) {
  const Value* value = take(name);
  if (!value) return;
  const int64_t* number = value->get_if<int64_t>();
  if (!number) refuse(name, *value, "a whole number");
  to = *number;
}

void Settings::read(std::string_view name, std::optional<double>& to) {
  const Value* value = take(name);
  if (!value) return;
  if (const double* number = value->get_if<double>()) {
    to = *number;
  } else if (const int64_t* whole = value->get_if<int64_t>()) {
    to = static_cast<double>(*whole);
  } else {
    refuse(name, *value, "a number");
  }
}

void Settings::read(std::string_view name, std::optional<std::string>& to) {
  const Value* value = take(name);
  if (!value) return;
  const std::string* text = value->get_if<std::string>();
  if (!text) refuse(name, *value, "a text");
  to = *text;
}

void Settings::read(std::string_view name, std::optional<std::vector<int64_t>>& to) {
  const Value* value = take(name);
  if (!value) return;
  const Values* items = sequence_items(*value);
  if (!items) refuse(name, *value, "a list of whole numbers");
  std::vector<int64_t> numbers;
  for (const Value& item : *items) {
    const int64_t* number = item.get_if<int64_t>();
    if (!number) refuse(name, *value, "a list of whole numbers");
    numbers.push_back(*number);
  }
  to = std::move(numbers);
}

void Settings::read(ToolOptions& to) {
  read("ops", to.ops);
  read("skip", to.skip);
  read("modules", to.modules);
  read("output_dir", to.output_dir);
  read("steps", to.steps);
  read("skip_cpu", to.skip_cpu);
  read("all_threads", to.all_threads);
  std::optional<std::string> level;
  read("level", level);
  if (level) to.level = level_from_string(*level);
}

void Settings::finish() const {
  for (const auto& [key, value] : *dict_.get_if<Dict>()->items) {
    const std::string* name = key.get_if<std::string>();
    if (!name || !read_.count(*name)) throw Error(describe(key) + " is no setting of this tool");
  }
}

const ToolKind& find_tool(std::string_view name) {
  std::string known;
  for (const ToolKind& kind : tool_kinds()) {
    if (kind.name == name || kind.feature == name) return kind;
    known.append(known.empty() ? "" : ", ").append(kind.name);
  }
  throw Error("there is no tool '" + std::string(name) + "'; there are " + known);
}

}  // namespace op_tools
