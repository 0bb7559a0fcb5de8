#include "hooks/stack_source.h"

#include <atomic>
#include <utility>

namespace op_tools {
namespace {

StackSource& source() {
  static StackSource* source = new StackSource;  // leaked: asked until the process ends
  return *source;
}

std::atomic<PlaceSource> g_place_source{nullptr};

}  // namespace

void set_stack_source(StackSource new_source) {
  source() = std::move(new_source);
}

void set_place_source(PlaceSource source) {
  g_place_source.store(source, std::memory_order_release);
}

Place place_on_stack(bool line, bool module) {
  const PlaceSource source = g_place_source.load(std::memory_order_acquire);
  return source ? source(line, module) : Place();
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
