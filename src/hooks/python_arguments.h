// An argument of a call by the parameter's name, for functions whose parameters are known to us.
#pragma once

#include <string_view>

#include "tensor/value.h"

namespace op_tools {

// `parameters`: the names in order, separated by spaces ("input p training"). nullptr: the call did not give it.
const Value* argument_of(std::string_view parameters, std::string_view name, const Value& args, const Value& kwargs);
// Both with another value for it: at its place, or else by its name.
struct NamedArguments {
  Value args, kwargs;
};
NamedArguments with_argument(std::string_view parameters, std::string_view name, Value value, const Value& args,
                             const Value& kwargs);

// Calls visit(word) for each word of a text that is separated by spaces.
template <class Visit>
void each_word(std::string_view text, Visit&& visit) {
  while (!text.empty()) {
    const size_t space = text.find(' ');
    if (const std::string_view word = text.substr(0, space); !word.empty()) visit(word);
    text = space == std::string_view::npos ? std::string_view() : text.substr(space + 1);
  }
}

}  // namespace op_tools
