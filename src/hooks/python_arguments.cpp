#include "hooks/python_arguments.h"

namespace op_tools {

const Value* argument_of(std::string_view parameters, std::string_view name, const Value& args, const Value& kwargs) {
  if (const Value* value = find_key(kwargs, name)) return value;
  const Values& positional = *sequence_items(args);
  const Value* match = nullptr;
  size_t position = 0;
  each_word(parameters, [&](std::string_view parameter) {
    if (parameter == name && position < positional.size()) match = &positional[position];
    ++position;
  });
  return match;
}

}  // namespace op_tools
