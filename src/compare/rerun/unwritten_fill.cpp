#include "compare/rerun/unwritten_fill.h"

#include <utility>

namespace op_tools {
namespace {

thread_local std::optional<UnwrittenFill> tl_fill;

}  // namespace

UnwrittenFillGuard::UnwrittenFillGuard(std::optional<UnwrittenFill> fill) : before_(std::exchange(tl_fill, fill)) {}
UnwrittenFillGuard::~UnwrittenFillGuard() {
  tl_fill = before_;
}

std::optional<UnwrittenFill> unwritten_fill() {
  return tl_fill;
}

}  // namespace op_tools
