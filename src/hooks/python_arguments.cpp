#include "hooks/python_arguments.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace op_tools {
namespace {

// Behind the last: it is not among the positional arguments.
size_t place_of(std::string_view parameters, std::string_view name, const Values& positional) {
  size_t place = positional.size(), position = 0;
  each_word(parameters, [&](std::string_view parameter) {
    if (parameter == name && position < positional.size()) place = position;
    ++position;
  });
  return place;
}

}  // namespace

const Value* argument_of(std::string_view parameters, std::string_view name, const Value& args, const Value& kwargs) {
  if (const Value* value = find_key(kwargs, name)) return value;
  const Values& positional = *sequence_items(args);
  const size_t place = place_of(parameters, name, positional);
  return place < positional.size() ? &positional[place] : nullptr;
}

NamedArguments with_argument(std::string_view parameters, std::string_view name, Value value, const Value& args,
                             const Value& kwargs) {
  Values positional = *sequence_items(args);
  if (const size_t place = place_of(parameters, name, positional); place < positional.size()) {
    positional[place] = std::move(value);
    return {make_tuple(std::move(positional)), kwargs};
  }
  std::vector<std::pair<Value, Value>> by_name = *kwargs.get_if<Dict>()->items;
  const auto is_it = [&](const std::pair<Value, Value>& item) {
    const auto* key = item.first.get_if<std::string>();
    return key && *key == name;
  };
  const auto item = std::find_if(by_name.begin(), by_name.end(), is_it);
  if (item == by_name.end()) {
    by_name.emplace_back(std::string(name), std::move(value));
  } else {
    item->second = std::move(value);
  }
  return {args, make_dict(std::move(by_name))};
}

}  // namespace op_tools
