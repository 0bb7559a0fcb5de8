#include "hooks/stack_source.h"

#include "base/host.h"

namespace op_tools {

StackLines current_lines() {
  StackLines lines(kMostStackLines);
  lines.resize(host().stack({lines.data(), lines.size()}));
  return lines;
}

std::vector<std::string> current_stack() {
  std::vector<std::string> lines;
  for (const std::string* const line : current_lines()) lines.push_back(*line);
  return lines;
}

}  // namespace op_tools
