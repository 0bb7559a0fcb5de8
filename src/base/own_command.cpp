#include "base/own_command.h"

#include <algorithm>

#include "base/host.h"

namespace op_tools {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
}

// As shlex.quote() of Python.
std::string quoted(std::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\"'\"'";
    } else {
      text += c;
    }
  }
  return text + "'";
}

std::string line_of(std::string text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) text += " " + quoted(word);
  return text;
}

}  // namespace

std::string op_tools_line(std::initializer_list<std::string_view> words) {
  return line_of(host().own_commands().op_tools, words);
}

std::string replay_line(std::initializer_list<std::string_view> words) {
  return line_of(host().own_commands().replay, words);
}

}  // namespace op_tools
