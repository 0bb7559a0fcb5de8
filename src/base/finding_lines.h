// The lines that a tool prints about its findings while the program runs: the first of each kind, and of the first
// kinds alone. A single wrong kernel is a finding in each of 200 steps, and drowns the others. At level info (-v) each
// finding has a line. Not thread-safe: a tool guards it with its findings.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

namespace op_tools {

class FindingLines {
 public:
  static constexpr size_t kMostKinds = 8;

  // Warns of a finding. `kind`: its operator, phase and module.
  void warn(const std::string& kind, const std::string& text);
  // For the end of a closing line: "; 198 of them without a line (-v: all)"; empty where each finding had a line.
  std::string untold_text() const;

 private:
  std::unordered_set<std::string> kinds_;
  uint64_t untold_ = 0;
};

}  // namespace op_tools
