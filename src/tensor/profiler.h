// Questions of op_tools to torch's profiler, without <ATen/record_function.h> (half a second per file).
#pragma once

#include <memory>
#include <string>

#include "base/export.h"

namespace op_tools {

// While an object lives, the profiler and other observers of this thread see no operator.
class OP_TOOLS_API ProfilerPause {
 public:
  ProfilerPause();
  ~ProfilerPause();
  ProfilerPause(ProfilerPause&&) noexcept;
  ProfilerPause& operator=(ProfilerPause&&) noexcept;

 private:
  struct Guard;
  std::unique_ptr<Guard> guard_;
};

// A range in the program's profile, from begin() to end() or the destructor. It is seen inside a ProfilerPause, too.
class OP_TOOLS_API ProfilerRange {
 public:
  ProfilerRange();
  ~ProfilerRange();
  ProfilerRange(ProfilerRange&&) noexcept;
  ProfilerRange& operator=(ProfilerRange&&) noexcept;
  void begin(const std::string& name);
  void end();

 private:
  struct Record;
  std::unique_ptr<Record> record_;
};

}  // namespace op_tools
