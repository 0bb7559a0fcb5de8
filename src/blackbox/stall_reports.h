// The files written while a program hangs, or when a person asks: a copy of the file, which the program would overwrite
// if it went on, and then the stacks of the program's language. Called by the thread of StallWatch alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "blackbox/blackbox_file.h"
#include "blackbox/stream_marks.h"

namespace op_tools {

class StallReports {
 public:
  // `stall`: seconds without a call that begins or ends after which it is reported; 0: never.
  StallReports(BlackBoxFile& file, StreamMarks& marks, double stall);

  std::chrono::milliseconds interval() const;  // in which check() is to be called
  // Answers "<file>.ask", where that file is there; looks how far the devices are, and whether the program gets on.
  void check();

 private:
  void report(int64_t waited);

  BlackBoxFile& file_;
  StreamMarks& marks_;
  const int64_t limit_;  // nanoseconds
  uint64_t seen_ = 0;    // of BlackBoxFile::progress()
  uint64_t reported_ = UINT64_MAX;
  int64_t since_;
};

}  // namespace op_tools
