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

namespace {
thread_local std::string tl_module;
}

void set_current_module(std::string path) {
  tl_module = std::move(path);
}
const std::string& current_module() {
  return tl_module;
}

}  // namespace op_tools
