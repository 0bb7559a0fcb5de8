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

std::vector<std::string> current_stack() {
  return source() ? source()() : std::vector<std::string>();
}

}  // namespace op_tools
