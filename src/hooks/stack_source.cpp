#include "hooks/stack_source.h"

#include <utility>

namespace op_tools {
namespace {

StackSource& source() {
  static StackSource* source = new StackSource;  // leaked: asked until the process ends
  return *source;
}

}  // namespace

void set_stack_source(StackSource new_source) {
  source() = std::move(new_source);
}

StackLines current_lines(size_t most) {
  return source() ? source()(most) : StackLines();
}

std::vector<std::string> current_stack() {
  std::vector<std::string> lines;
  for (const std::string* const line : current_lines()) lines.push_back(*line);
  return lines;
}

}  // namespace op_tools
