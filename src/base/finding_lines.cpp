#include "base/finding_lines.h"

#include "base/log.h"

namespace op_tools {

void FindingLines::warn(const std::string& kind, const std::string& text) {
  const bool is_first = kinds_.size() < kMostKinds && kinds_.insert(kind).second;
  if (is_first || log::enabled(log::Level::kInfo)) {
    log::warn(text);
  } else {
    ++untold_;
  }
}

std::string FindingLines::untold_text() const {
  return untold_ ? "; " + std::to_string(untold_) + " of them without a line here (-v prints all)" : std::string();
}

}  // namespace op_tools
