#include "record/module_calls.h"

#include <string_view>

namespace op_tools {
namespace {

// Is it this module, or a module inside of it?
bool is_inside(std::string_view path, std::string_view module) {
  return path.substr(0, module.size()) == module && (path.size() == module.size() || path[module.size()] == '.');
}

}  // namespace

uint32_t ModuleCalls::of(uint32_t thread, OpCall& call, Phase phase) {
  const std::string& path = call.module();
  if (phase == Phase::kBackward) return 0;  // paired by their forward calls
  Thread& here = threads_[thread];
  if (here.asked == &path) return here.number;
  if (path != here.last) {
    // Every module around the call that the previous call was not in has been entered.
    for (size_t end = path.find('.'); !path.empty(); end = path.find('.', end + 1)) {
      const std::string module = path.substr(0, end);
      if (!is_inside(here.last, module)) ++here.entered[module];
      if (end == std::string::npos) break;
    }
    here.last = path;
  }
  here.asked = &path;
  here.number = path.empty() ? 0 : here.entered[path] - 1;
  return here.number;
}

}  // namespace op_tools
