#include "hooks/python_arguments.h"

namespace op_tools {

const Value* argument_of(std::string_view parameters, std::string_view name, const Value& args, const Value& kwargs) {
  if (const Value* given = find_key(kwargs, name)) return given;
  const Values& positional = *sequence_items(args);
  const Value* found = nullptr;
  size_t position = 0;
  each_word(parameters, [&](std::string_view parameter) {
    if (parameter == name && position < positional.size()) found = &positional[position];
    ++position;
  });
  return found;
}

}  // namespace op_tools
